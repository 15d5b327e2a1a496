/* Answers on an exchange's connection, and what can be known of the client. */
#pragma once
#include "server/exchange.h"

enum MHD_Result reply_json(Exchange *x, int status, Buffer *body);       /* takes the buffer */
enum MHD_Result reply_text(Exchange *x, const char *type, Buffer *body); /* 200; takes the buffer */
enum MHD_Result reply_error(Exchange *x, const ApiError *error);
/* read is called once the headers are out, with x. */
enum MHD_Result reply_stream(Exchange *x, MHD_ContentReaderCallback read);

struct GuardEntry *reply_guard(const Exchange *x); /* of its connection, for deadlines */
void reply_touch(Exchange *x);                     /* the client took something: moves its deadline */
int reply_socket(const Exchange *x);               /* −1: there is none */
bool reply_client_gone(const Exchange *x);
