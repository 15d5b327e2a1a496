/* What requests and responses of Anthropic's Messages API share. */
#pragma once

/* The error code for conversations that a server stores; Anthropic's clients then send the whole conversation. */
extern const char thread_unsupported[];
