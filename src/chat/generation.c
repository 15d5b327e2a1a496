#include "chat/generation.h"

#include "chat/prompt.h"

#include <stdlib.h>
#include <string.h>

enum { READ_AT_ONCE = 32 };

static bool copy_stops(Generation *g, const GenerationOptions *options, Slice *stops, Error *error) {
    size_t size = 0, at = 0;
    for (int i = 0; i < options->stop_count; i++) size += options->stops[i].size;
    g->stops = malloc(size + 1);
    if (!g->stops) return fail(error, ERROR_MEMORY, "no memory for %d stop strings", options->stop_count);
    for (int i = 0; i < options->stop_count; i++) {
        const Slice stop = options->stops[i];
        stops[i] = (Slice){g->stops + at, stop.size};
        if (stop.size > 0) memcpy(g->stops + at, stop.data, stop.size);
        at += stop.size;
    }
    return true;
}

static bool open_choice(Generation *g, Choice *choice, const GenerationOptions *options, Error *error) {
    stream_text_init(&choice->stream);
    for (int i = 0; i < options->stop_count; i++) choice->stream.stops[i] = options->stops[i];
    choice->stream.stop_count = options->stop_count;
    choice->detokenizer = detokenizer_new(g->model->tokenizer, true, error);
    if (!choice->detokenizer || !g->parsed) return choice->detokenizer;
    PromptReasoning reasoning;
    if (!chat_prompt_reasoning(g->model, &options->prompts[choice->prompt], &reasoning, error)) return false;
    answer_open(
        &choice->parser, options->calls, g->model->reasoning, reasoning == PROMPT_REASONING_OPEN, options->tools);
    choice->parser.only_calls = options->only_calls;
    choice->parser.formatted = options->formatted;
    return true;
}

static bool open_prompt(Generation *g, const GenerationOptions *options, Error *error) {
    const int prompt = g->request_count;
    const Tokens *tokens = &options->prompts[prompt];
    if (tokens->count > INT32_MAX)
        return fail(error, ERROR_LIMIT, "a prompt of %zu tokens is too long for any model", tokens->count);
    RequestOptions request = options->request;
    request.prompt = tokens->ids;
    request.prompt_count = (int)tokens->count;
    g->requests[prompt] = engine_submit(g->model->engine, &request, error);
    if (!g->requests[prompt]) return false;
    g->request_count++;
    g->prompt_tokens += (int64_t)tokens->count;
    for (int i = 0; i < options->request.choices; i++) {
        Choice *choice = &g->choices[g->choice_count++];
        choice->request = g->requests[prompt];
        choice->request_choice = i;
        choice->prompt = prompt;
        if (!open_choice(g, choice, options, error)) return false;
    }
    return true;
}

bool generation_open(Generation *g, const ChatModel *model, const GenerationOptions *given, Error *error) {
    CHECK(given->prompt_count >= 1 && given->request.choices >= 1 && given->stop_count <= STOP_STRINGS_MAX);
    GenerationOptions copy = *given;
    const GenerationOptions *options = &copy;
    Slice stops[STOP_STRINGS_MAX];
    copy.stops = stops;
    const size_t prompts = (size_t)options->prompt_count;
    *g = (Generation){.model = model, .logprobs = options->request.sampling.logprobs >= 0, .parsed = options->parsed};
    g->requests = calloc(prompts, sizeof *g->requests);
    g->choices = calloc(prompts * (size_t)options->request.choices, sizeof *g->choices);
    bool ok = (g->requests && g->choices) || fail(error, ERROR_MEMORY, "no memory for %zu prompts", prompts);
    ok = ok && copy_stops(g, given, stops, error);
    while (ok && g->request_count < options->prompt_count) ok = open_prompt(g, options, error);
    if (!ok) generation_close(g);
    return ok;
}

void generation_close(Generation *g) {
    for (int i = 0; i < g->request_count; i++) request_free(g->requests[i]);
    for (int i = 0; i < g->choice_count; i++) {
        Choice *choice = &g->choices[i];
        detokenizer_free(choice->detokenizer);
        stream_text_free(&choice->stream);
        buffer_free(&choice->text);
        answer_close(&choice->parser);
        answer_events_free(&choice->events);
        free(choice->tokens);
    }
    free(g->requests);
    free(g->choices);
    free(g->stops);
    buffer_free(&g->piece);
    *g = (Generation){0};
}

void generation_cancel(Generation *g) {
    g->cancelled = true;
    for (int i = 0; i < g->request_count; i++) request_cancel(g->requests[i]);
}

bool generation_admitted(const Generation *g) {
    for (int i = 0; i < g->request_count; i++)
        if (request_stats(g->requests[i]).admitted) return true;
    return false;
}

int64_t generation_answer_tokens(const Generation *g) {
    int64_t total = 0;
    for (int i = 0; i < g->choice_count; i++) total += g->choices[i].generated;
    return total;
}

int64_t generation_reasoning_tokens(const Generation *g) {
    int64_t total = 0;
    for (int i = 0; i < g->choice_count; i++) total += g->choices[i].reasoned;
    return total;
}

DraftStats generation_drafts(const Generation *g, DraftSource source) {
    DraftStats all = {0};
    for (int i = 0; i < g->request_count; i++) {
        const RequestStats stats = request_stats(g->requests[i]);
        all.drafted += stats.drafts[source].drafted;
        all.accepted += stats.drafts[source].accepted;
    }
    return all;
}

int64_t generation_cached_tokens(const Generation *g) {
    int64_t total = 0;
    for (int i = 0; i < g->request_count; i++) total += request_stats(g->requests[i]).cached_tokens;
    return total;
}

/* ---- taking in ---- */

static bool keep_token(Choice *choice, const TokenOut *token, Error *error) {
    if (choice->token_count == choice->token_capacity) {
        const int capacity = choice->token_capacity ? choice->token_capacity * 2 : 16;
        TokenOut *grown = realloc(choice->tokens, (size_t)capacity * sizeof *grown);
        if (!grown) return fail(error, ERROR_MEMORY, "no memory for the answer's log-probabilities");
        choice->tokens = grown;
        choice->token_capacity = capacity;
    }
    choice->tokens[choice->token_count++] = *token;
    return true;
}

static void end_choice(Generation *g, Choice *choice, Finish finish) {
    if (g->parsed) answer_finish(&choice->parser, finish == FINISH_LENGTH, &choice->events);
    choice->finish = finish;
    g->ended++;
}

/* An answer that was cut inside a character does not show the part; its logprobs carry the bytes. */
static void drop_incomplete(Buffer *piece) {
    static const char replacement[] = "\xEF\xBF\xBD";
    const size_t size = sizeof replacement - 1;
    while (piece->size >= size && !memcmp(piece->data + piece->size - size, replacement, size)) piece->size -= size;
}

/* The same where the budget of reasoning ends inside a character: the part stands in front of the end marker. */
static void drop_before_marker(Generation *g, const Choice *choice, int32_t id) {
    static const char replacement[] = "\xEF\xBF\xBD";
    const size_t size = sizeof replacement - 1;
    Buffer spelling = {0};
    size_t cut = 0;
    while (g->piece.size - cut >= size && !memcmp(g->piece.data + cut, replacement, size)) cut += size;
    if (cut == 0 || !answer_reasons(&choice->parser)) return;
    const bool marker = tokenizer_bytes(g->model->tokenizer, id, &spelling, NULL) &&
        spelling.size == g->piece.size - cut &&
        call_format_uses(choice->parser.calls, choice->parser.reasoning, buffer_view(&spelling));
    buffer_free(&spelling);
    if (!marker) return;
    memmove(g->piece.data, g->piece.data + cut, g->piece.size - cut);
    g->piece.size -= cut;
}

/* Special tokens have no text, except markers of calls and reasoning. */
static bool spell_marker(Generation *g, const Choice *choice, int32_t id, Error *error) {
    if (!g->parsed || !tokenizer_is_special(g->model->tokenizer, id)) return true;
    const size_t before = g->piece.size;
    if (!tokenizer_bytes(g->model->tokenizer, id, &g->piece, error)) return false;
    const Slice spelling = {g->piece.data + before, g->piece.size - before};
    if (!call_format_uses(choice->parser.calls, choice->parser.reasoning, spelling)) g->piece.size = before;
    return true;
}

/* Gives new text to the parser. */
static void parse_text(const Generation *g, Choice *choice) {
    if (!g->parsed || choice->text.size == 0) return;
    answer_push(&choice->parser, buffer_view(&choice->text), &choice->events);
    buffer_clear(&choice->text);
}

/* Stop strings end the text that a client gets: in reasoning and calls they mean nothing, and would leave a call or an
 * answer of a format that is not valid. */
static bool may_stop(const Generation *g, const Choice *choice) {
    const AnswerParser *p = &choice->parser;
    if (!g->parsed) return true;
    const bool in_call = p->state == ANSWER_AMONG_CALLS || p->state == ANSWER_IN_ARGUMENTS ||
        p->state == ANSWER_BEHIND_ARGUMENTS || (p->state == ANSWER_IN_MESSAGE && p->message == ANSWER_ARGUMENTS);
    return !p->only_calls && !in_call && !answer_reasons(p);
}

/* Gives g->piece to the choice's text. True: a stop string matched. */
static bool take_piece(Generation *g, Choice *choice) {
    if (may_stop(g, choice)) return stream_text_push(&choice->stream, buffer_view(&g->piece), &choice->text);
    stream_text_finish(&choice->stream, &choice->text);
    buffer_slice(&choice->text, buffer_view(&g->piece));
    return false;
}

/* A small model may call tools until the context is full, so the number of calls is limited. */
static bool has_called_enough(const Choice *choice) {
    const AnswerState state = choice->parser.state;
    return choice->parser.calls_seen >= CALLS_MAX &&
        (state == ANSWER_AMONG_CALLS || state == ANSWER_IN_CONTENT || state == ANSWER_IN_HEADER);
}

/* A stop string ends the choice. */
static bool take_token(Generation *g, Choice *choice, const TokenOut *token, Error *error) {
    choice->generated++;
    if (g->logprobs && !keep_token(choice, token, error)) return false;
    buffer_clear(&g->piece);
    if (!detokenizer_push(choice->detokenizer, token->id, &g->piece, error)) return false;
    drop_before_marker(g, choice, token->id);
    if (!spell_marker(g, choice, token->id, error)) return false;
    const bool reasoned = answer_reasons(&choice->parser);
    const bool stopped = take_piece(g, choice);
    parse_text(g, choice);
    choice->reasoned += g->parsed && (reasoned || answer_reasons(&choice->parser));
    if (stopped || has_called_enough(choice)) {
        request_stop_choice(choice->request, choice->request_choice);
        end_choice(g, choice, FINISH_STOP);
    }
    return true;
}

/* The engine has ended the choice: held-back text becomes its text. */
static bool take_finish(Generation *g, Choice *choice, Finish finish, Error *error) {
    if (finish == FINISH_ERROR) {
        Error why;
        request_error(choice->request, &why);
        return fail(error, why.code, "%s", why.text);
    }
    if (finish == FINISH_CANCELLED && !g->cancelled) return fail(error, ERROR_CANCELLED, "the model is being closed");
    buffer_clear(&g->piece);
    if (!detokenizer_finish(choice->detokenizer, &g->piece, error)) return false;
    if (finish == FINISH_LENGTH) drop_incomplete(&g->piece);
    if (take_piece(g, choice))
        finish = FINISH_STOP;
    else
        stream_text_finish(&choice->stream, &choice->text);
    parse_text(g, choice);
    end_choice(g, choice, finish);
    return true;
}

static bool take_choice(Generation *g, Choice *choice, Error *error) {
    TokenOut tokens[READ_AT_ONCE];
    Finish finish = FINISH_NONE;
    if (choice->finish != FINISH_NONE) /* ended by a stop string: later tokens are discarded */
        while (request_read(choice->request, choice->request_choice, tokens, READ_AT_ONCE, 0, &finish) > 0) continue;
    while (choice->finish == FINISH_NONE) {
        const int count = request_read(choice->request, choice->request_choice, tokens, READ_AT_ONCE, 0, &finish);
        for (int i = 0; i < count && choice->finish == FINISH_NONE; i++)
            if (!take_token(g, choice, &tokens[i], error)) return false;
        if (choice->finish != FINISH_NONE || (count < READ_AT_ONCE && finish == FINISH_NONE)) break;
        if (finish != FINISH_NONE && !take_finish(g, choice, finish, error)) return false;
    }
    const bool failed = choice->text.failed || choice->events.failed;
    return !failed || fail(error, ERROR_MEMORY, "no memory for the answer's text");
}

bool generation_take(Generation *g, Error *error) {
    bool ok = true;
    for (int i = 0; i < g->choice_count && ok; i++) ok = take_choice(g, &g->choices[i], error);
    return ok;
}

bool generation_pump(Generation *g, int timeout_ms, Error *error) {
    if (g->request_count == 1)
        request_wait(g->requests[0], timeout_ms);
    else
        g->round = engine_wait(g->model->engine, g->round, timeout_ms);
    return generation_take(g, error);
}
