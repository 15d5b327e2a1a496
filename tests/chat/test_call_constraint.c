/* Calls that are demanded of a model that knows nothing are valid whatever it draws; calls in free text are valid from
 * where they begin; nothing holds within reasoning. */
#include "chat/call_constraint.h"
#include "chat/generation.h"

#include "chat/chat_fixture.h"
#include "test.h"

enum { SEEDS = 1000, AT_ONCE = 50, TIMEOUT_MS = 60000 };

static const char tools_json[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\","
    "\"maxLength\":5},\"n\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120},\"e\":{\"type\":\"string\",\"enum\":["
    "\"red\",\"blue\"]},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"maxItems\":2}},\"required\":["
    "\"e\"],"
    "\"additionalProperties\":false}}},{\"function\":{\"name\":\"g\"}}]";

static Arena arena;
static const Json *tools;

static int list_tools(CallTool list[2]) {
    int count = 0;
    for (JSON_EACH(tool, tools)) {
        const Json *function = json_get(tool, "function");
        list[count++] =
            (CallTool){.name = json_slice(json_get(function, "name")), .parameters = json_get(function, "parameters")};
    }
    return count;
}

/* The arguments of f and g, by hand. */
static bool arguments_fit(Slice name, Slice text) {
    Arena scratch = {0};
    Error error;
    const Json *value = json_parse(&scratch, text, &error);
    bool fits = value && value->type == JSON_OBJECT;
    if (fits && slice_is(name, "g")) fits = value->size == 0;
    if (fits && slice_is(name, "f")) {
        fits = json_get(value, "e") != NULL;
        for (JSON_EACH_PAIR(key, item, value)) {
            const Slice k = json_slice(key);
            fits = fits &&
                (slice_is(k, "s")          ? item->type == JSON_STRING && item->size <= 10
                        : slice_is(k, "n") ? item->type == JSON_INTEGER && item->integer >= -3 && item->integer <= 120
                        : slice_is(k, "e") ? slice_is(json_slice(item), "red") || slice_is(json_slice(item), "blue")
                        : slice_is(k, "l") ? item->type == JSON_ARRAY && item->size <= 2
                                           : false);
        }
    }
    arena_free(&scratch);
    return fits && (slice_is(name, "f") || slice_is(name, "g"));
}

/* Nothing but whole calls. */
static bool answer_fits(const Choice *choice, bool single) {
    const AnswerEvents *events = &choice->events;
    Buffer text = {0};
    Slice name = {0};
    bool fits = choice->finish == FINISH_STOP;
    int calls = 0;
    for (int i = 0; i < events->count && fits; i++) {
        const AnswerEvent *event = &events->list[i];
        if (event->kind == ANSWER_CALL) {
            name = answer_event_text(events, i);
            buffer_clear(&text);
            calls++;
        }
        if (event->kind == ANSWER_ARGUMENTS) buffer_slice(&text, answer_event_text(events, i));
        if (event->kind == ANSWER_CALL_END) fits = arguments_fit(name, buffer_view(&text));
        fits = fits && event->kind != ANSWER_CONTENT;
    }
    buffer_free(&text);
    return fits && calls >= 1 && (calls == 1 || !single);
}

static void demand(ChatModel *model, const CallFormat *format, bool single, int seeds) {
    CallTool list[2];
    Error error = {0};
    model->calls = format;
    const CallRules rules = {.format = format,
        .tools = list,
        .count = list_tools(list),
        .single = single,
        .announced = call_format_announces(format),
        .bare = !call_format_announces(format)};
    Constraint *constraint = call_constraint(model, &rules, true, &error);
    TEST_MSG(constraint != NULL, "%s: %s", format->name, error.text);
    if (!constraint) return;
    Tokens prompt = {0};
    CHECK(tokenizer_encode(model->tokenizer, SLICE("Go"), CONTROL_AS_TEXT, true, &prompt, &error));
    int bad = 0;
    for (int seed = 0; seed < seeds; seed += AT_ONCE) {
        Generation g;
        const GenerationOptions options = {.prompts = &prompt,
            .prompt_count = 1,
            .request = {.choices = AT_ONCE,
                .max_tokens = 2000,
                .constraint = constraint,
                .sampling =
                    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = (uint64_t)seed, .logprobs = -1}},
            .parsed = true,
            .calls = format,
            .tools = tools};
        CHECK(generation_open(&g, model, &options, &error));
        while (!generation_done(&g)) CHECK(generation_pump(&g, TIMEOUT_MS, &error));
        for (int i = 0; i < AT_ONCE; i++) bad += !answer_fits(&g.choices[i], single);
        generation_close(&g);
    }
    TEST_MSG(bad == 0, "%s: %d of %d answers are no valid calls", format->name, bad, seeds);
    tokens_free(&prompt);
    constraint_release(constraint);
}

static bool is_ascii(const CallFormat *format) {
    for (const char *c = format->open; *c; c++)
        if ((unsigned char)*c >= 0x80) return false;
    return true;
}

static void test_demanded(void) {
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    fake.eos_logit = 0;
    ChatModel *model = chat_open(&fixture, 4, 64);
    for (int i = 0; call_format_at(i); i++) {
        const CallFormat *format = call_format_at(i);
        if (!is_ascii(format)) continue; /* the model has no tokens for it */
        demand(model, format, false, !strcmp(format->name, "hermes") ? SEEDS : AT_ONCE);
        demand(model, format, true, AT_ONCE);
    }
    model->calls = NULL;
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

/* ---- free text ---- */

static bool feed(Constraint *c, const ChatModel *model, ConstraintState *state, const char *text) {
    Tokens tokens = {0};
    Error error = {0};
    CHECK(tokenizer_encode(model->tokenizer, slice_of(text), CONTROL_AS_TEXT, false, &tokens, &error));
    uint64_t mask[(CHAT_VOCAB + 63) / 64 + 1];
    bool ok = true, any;
    for (size_t i = 0; i < tokens.count && ok; i++) {
        const int32_t id = tokens.ids[i];
        ok = c->ops->mask(c, *state, mask, &any, &error) && (any || mask[id / 64] >> id % 64 & 1) &&
            c->ops->accept(c, state, id, &error);
    }
    tokens_free(&tokens);
    return ok;
}

static bool is_free(Constraint *c, ConstraintState state) {
    uint64_t mask[(CHAT_VOCAB + 63) / 64 + 1];
    bool any = false;
    Error error;
    return c->ops->mask(c, state, mask, &any, &error) && any;
}

/* The end of the answer may follow; there is no other token that may not. */
static bool reasons_freely(Constraint *c, ConstraintState state, bool ends) {
    uint64_t mask[(CHAT_VOCAB + 63) / 64 + 1];
    bool any = false;
    Error error;
    if (!c->ops->mask(c, state, mask, &any, &error)) return false;
    for (int32_t id = 0; id < CHAT_VOCAB && !any; id++)
        if ((mask[id / 64] >> id % 64 & 1) != (id != CHAT_END || ends)) return false;
    return !any || ends;
}

static void test_free(void) {
    static const struct {
        const char *text;
        bool goes, free; /* every token may come; behind the last, any may */
    } cases[] = {
        {"Hello < <tool_ <tool_cal", true, true},
        {"The <tool_call> tag", true, true},
        {"Hi <tool_call>\n{\"name\": \"", true, false},
        {"Hi <tool_call>\n{\"name\": \"f\", \"arguments\": {\"e\": \"red\"}}\n</tool_call>", true, true},
        {"<tool_call>{\"name\": \"g\", \"arguments\": {}}\n</tool_call> and <tool_call>\n{\"name\": \"f\"", true,
            false},
        {"Hi <tool_call>\n{\"name\": \"h", false, false},
        {"Hi <tool_call>\n{\"nose", false, false},
        {"Hi <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x", false, false},
        {"{\"name\": \"f\", \"arguments\": {\"e\": \"red\"}}", true, false},
        {" {\n  \"name\" : \"f\", \"arguments\": {\"e\": \"", true, false},
        {"{\"name\": \"Bob", false, false},
        {"{\"names\": 5}", true, true},
        {"{\"na<tool_call>\n{\"nose", false, false},
    };
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    ChatModel *model = chat_open(&fixture, 1, 4);
    CallTool list[2];
    Error error = {0};
    const CallRules rules = {.format = chat_model_calls(model),
        .tools = list,
        .count = list_tools(list),
        .announced = true,
        .bare = true,
        .followed = true};
    Constraint *c = call_constraint(model, &rules, false, &error);
    TEST_MSG(c != NULL, "%s", error.text);
    for (size_t i = 0; c && i < COUNT_OF(cases); i++) {
        ConstraintState state = c->start;
        const bool goes = feed(c, model, &state, cases[i].text);
        TEST_MSG(goes == cases[i].goes, "%s: %s", cases[i].text, goes ? "goes through" : "is stopped");
        if (goes && cases[i].goes) TEST_MSG(is_free(c, state) == cases[i].free, "%s", cases[i].text);
    }
    static const ReasoningFormat think = {"<|start|>", "</think>"};
    model->reasoning = &think;
    Constraint *open = reasoning_constraint(model, constraint_retain(c), true, -1, &error);
    ConstraintState state = open->start;
    TEST(feed(open, model, &state, "a <tool_call>\n{\"nose </thin</think>\n<tool_call>\n{\"name\": \"") &&
        !is_free(open, state));
    constraint_release(open);
    Constraint *chosen = reasoning_constraint(model, constraint_retain(c), false, -1, &error);
    state = chosen->start;
    TEST(chosen->ops->accept(chosen, &state, CHAT_START, &error) &&
        feed(chosen, model, &state, "{\"name\": \"Bob\"</think>Hi"));
    constraint_release(chosen);
    constraint_release(c);

    /* A grammar may come back to where it began: an answer that is under way does not begin to reason. */
    Constraint *pairs = reasoning_constraint(model,
        constraint_compile(model, GRAMMAR_REGEX, SLICE("(ab)*"), GRAMMAR_SPACE_FLEXIBLE, &error), false, -1, &error);
    TEST_MSG(pairs != NULL, "%s", error.text);
    state = pairs->start;
    TEST(feed(pairs, model, &state, "ab") && !pairs->ops->accept(pairs, &state, CHAT_START, &error));
    state = pairs->start;
    TEST(pairs->ops->accept(pairs, &state, CHAT_START, &error) && feed(pairs, model, &state, "hm</think>ab"));
    constraint_release(pairs);

    /* What is demanded of an answer is demanded of one that reasons, too. */
    const char *const inner[] = {"(ab)*", "(ab)+"};
    for (int i = 0; i < 2; i++) {
        Constraint *demand = reasoning_constraint(model,
            constraint_compile(model, GRAMMAR_REGEX, slice_of(inner[i]), GRAMMAR_SPACE_FLEXIBLE, &error), true, -1,
            &error);
        TEST_MSG(demand != NULL, "%s", error.text);
        if (!demand) continue;
        TEST_MSG(reasons_freely(demand, demand->start, i == 0), "an end within reasoning, then %s", inner[i]);
        constraint_release(demand);
    }
    model->reasoning = NULL;
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

/* The only token that may follow; −1: there are more. */
static int32_t only_of(Constraint *c, ConstraintState state) {
    uint64_t mask[(CHAT_VOCAB + 63) / 64 + 1] = {0};
    bool any = false;
    int32_t only = -1;
    Error error;
    if (!c->ops->mask(c, state, mask, &any, &error) || any) return -1;
    for (int32_t id = 0; id < CHAT_VOCAB; id++) {
        if (!(mask[id / 64] >> id % 64 & 1)) continue;
        if (only >= 0) return -1;
        only = id;
    }
    return only;
}

/* Behind so many tokens of reasoning, what ends it is spelled, whatever the marker's beginning was taken for; then
 * anything may come, or what the inner constraint lets. */
static void test_budget(void) {
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    ChatModel *model = chat_open(&fixture, 1, 4);
    static const ReasoningFormat think = {"<|start|>", "</think>"};
    Error error = {0};
    model->reasoning = &think;
    for (int inner = 0; inner < 2; inner++) {
        for (int budget = 0; budget < 6; budget++) {
            Constraint *below =
                inner ? constraint_compile(model, GRAMMAR_REGEX, SLICE("(ab)+"), GRAMMAR_SPACE_FLEXIBLE, &error) : NULL;
            Constraint *c = reasoning_constraint(model, below, budget % 2, budget, &error);
            TEST_MSG(c != NULL, "%s", error.text);
            if (!c) continue;
            ConstraintState state = c->start;
            if (budget % 2 == 0) {
                TEST(is_free(c, state) == !inner);
                TEST(c->ops->accept(c, &state, CHAT_START, &error));
            }
            int tokens = 0;
            for (; tokens < 50 && reasons_freely(c, state, !inner); tokens++)
                TEST(feed(c, model, &state, tokens == 4 ? "<" : "x"));
            TEST_MSG(tokens == budget, "%d of %d tokens", tokens, budget);
            Buffer spelled = {0};
            for (int32_t id; (id = only_of(c, state)) >= 0 && spelled.size < 50;) {
                TEST(tokenizer_bytes(model->tokenizer, id, &spelled, &error));
                TEST(c->ops->accept(c, &state, id, &error));
                if (inner && spelled.size && spelled.data[spelled.size - 1] == '>') break;
            }
            const char *wanted = budget == 5 ? "/think>" : "</think>"; /* its first byte has been read */
            TEST_MSG(slice_is(buffer_view(&spelled), wanted), "%.*s", SLICE_SHOWN(buffer_view(&spelled)));
            TEST(inner ? feed(c, model, &state, "ab") : is_free(c, state));
            buffer_free(&spelled);
            constraint_release(c);
        }
    }
    Constraint *c = reasoning_constraint(model, NULL, false, 3, &error); /* an answer that does not reason */
    ConstraintState state = c->start;
    for (int i = 0; i < 9; i++) TEST(feed(c, model, &state, i ? "x" : " ") && is_free(c, state));
    constraint_release(c);
    model->reasoning = NULL;
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

int main(void) {
    Error error;
    log_set_level(LOG_ERROR);
    tools = json_parse(&arena, slice_of(tools_json), &error);
    CHECK(tools);
    test_free();
    test_demanded();
    test_budget();
    arena_free(&arena);
    return test_done();
}
