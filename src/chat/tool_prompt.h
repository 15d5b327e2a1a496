/* Tools for models whose template has none: described in plain text, with calls in the Hermes format. */
#pragma once
#include "chat/prompt.h"

/* Whether the model's template uses the variable `tools`. */
bool tool_prompt_known(const ChatModel *model);
/* The conversation with tools, calls and results as plain text. *out points into the prompt and the arena. */
NODISCARD bool tool_prompt_spell(const ChatPrompt *prompt, Arena *arena, ChatPrompt *out, Error *error);
