/* Tools for models whose template knows none: said in plain text, calls as Hermes spells them. */
#pragma once
#include "chat/prompt.h"

/* Whether the model's template shows tools to the model. */
bool tool_prompt_known(const ChatModel *model);
/* The same conversation without tools, calls and messages of the role "tool"; what it points to is in the arena. */
NODISCARD bool tool_prompt_spell(const ChatPrompt *prompt, Arena *arena, ChatPrompt *out, Error *error);
