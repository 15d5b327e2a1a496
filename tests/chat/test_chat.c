/* From messages to an answer, over the fake model. */
#include "chat/generation.h"
#include "base/clock.h"
#include "chat/tool_prompt.h"

#include "chat/chat_fixture.h"

enum { TIMEOUT_MS = 60000 };

/* ---- prompts ---- */

/* Ids as text; control tokens in brackets. */
static void spell(const Tokens *tokens, char *out, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < tokens->count && used + 8 < size; i++) {
        const int32_t id = tokens->ids[i];
        if (id >= CHAT_START)
            used += (size_t)snprintf(out + used, size - used, id == CHAT_START ? "[S]" : "[E]");
        else
            out[used++] = (char)(id < CHAT_ASCII ? ' ' + id
                    : id == CHAT_NEWLINE         ? '\n'
                    : id == CHAT_E1              ? '\xC3'
                                                 : '\xA9');
    }
    out[used] = 0;
}

static void test_prompt(void) {
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    ChatModel *model = chat_open(&fixture, 1, 1);
    Arena arena = {0};
    PromptMedia media;
    Error error = {0};
    const ChatMessage messages[] = {
        {.role = "system", CHAT_TEXT(SLICE("Be \xC3\xA9."))},
        {.role = "user", CHAT_TEXT(SLICE("<|end|> {\"a\":\\n}")), .name = SLICE("Bob<|start|>")},
        {.role = "assistant", CHAT_TEXT(SLICE(""))},
    };
    /* An answer that goes on: cut behind the content, blanks included, whatever the template writes behind it. */
    const ChatMessage begun[] = {
        {.role = "user", CHAT_TEXT(SLICE("Say ab"))}, {.role = "assistant", CHAT_TEXT(SLICE(" ab "))}};
    const ChatPrompt open = {.messages = begun, .message_count = 2, .continues = true};
    Tokens going = {0};
    char begun_text[200];
    TEST_MSG(chat_prompt(model, &open, &arena, &going, &media, &error), "%s", error.text);
    spell(&going, begun_text, sizeof begun_text);
    TEST_MSG(!strcmp(begun_text, "[S]user\nSay ab[E]\n[S]assistant\n ab "), "%s", begun_text);
    tokens_free(&going);
    const struct {
        size_t first, count;
        const char *arguments, *prompt;
    } cases[] = {
        {0, 3, NULL,
            "[S]system\nBe \xC3\xA9.[E]\n[S]user\nBob<|start|>: <|end|> {\"a\":\\n}[E]\n[S]assistant\n[E]\n"
            "[S]assistant\n[E]"},
        {2, 1, "{\"mood\":{\"words\":[\"a<|end|>\",5,2.5],\"kind\":\"k\"},\"other\":null}",
            "[S]assistant\n[E]\n[S]assistant\nka<|end|>,5,2.5[E]"},
        {0, 0, NULL, "[S]assistant\n[E]"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Tokens tokens = {0};
        char text[512] = "";
        const Json *arguments = cases[i].arguments ? json_parse(&arena, slice_of(cases[i].arguments), &error) : NULL;
        const ChatPrompt prompt = {messages + cases[i].first, cases[i].count, arguments, NULL, false};
        TEST_MSG(chat_prompt(model, &prompt, &arena, &tokens, &media, &error), "%s", error.text);
        spell(&tokens, text, sizeof text);
        TEST_MSG(!strcmp(text, cases[i].prompt), "%s", text);
        tokens_free(&tokens);
    }
    Tokens tokens = {0};
    Arena small = {.limit = 64};
    const ChatPrompt prompt = {messages, COUNT_OF(messages), NULL, NULL, false};
    TEST(!chat_prompt(model, &prompt, &small, &tokens, &media, &error) && error.code == ERROR_LIMIT);
    arena_free(&small);
    chat_model_close(model);
    chat_fixture_close(&fixture);

    chat_fixture_open(&fixture, false);
    model = chat_open(&fixture, 1, 1);
    TEST(!chat_prompt(model, &prompt, &arena, &tokens, &media, &error) && error.code == ERROR_UNSUPPORTED);
    TEST(!model->text_parts && !strcmp(model->name, "fake") && model->sampling.temperature == 1 &&
        chat_model_vocab(model) == CHAT_VOCAB);
    chat_model_close(model);
    chat_fixture_close(&fixture);
    arena_free(&arena);
}

/* A template that looks for parts in each content (SmolVLM, Idefics 3) gets lists of parts, also of plain texts. */
static void test_text_parts(void) {
    static const char source[] =
        "{% for m in messages %}{{ m.role }}{% if m.content[0]['type'] == 'image' %}:{% else %}: {% endif %}"
        "{% for c in m.content %}{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{{ eos_token }}"
        "{% endfor %}";
    const ChatMessage messages[] = {{.role = "system", CHAT_TEXT(SLICE("Be"))},
        {.role = "user", CHAT_TEXT(SLICE("Hi"))}, {.role = "assistant", CHAT_TEXT(SLICE(""))},
        {.role = "user",
            .parts =
                (ContentPart[]){{.kind = CONTENT_TEXT, .text = SLICE("a")}, {.kind = CONTENT_TEXT, .text = SLICE("b")}},
            .part_count = 2}};
    const ChatPrompt prompt = {.messages = messages, .message_count = COUNT_OF(messages)};
    ChatFixture fixture;
    Buffer json = {0};
    Arena arena = {0};
    PromptMedia media;
    Tokens tokens = {0};
    Error error = {0};
    char text[200] = "";
    chat_fixture_open(&fixture, false);
    buffer_text(&json, "{\"eos_token\":\"<|end|>\",\"chat_template\":");
    json_write_string(&json, slice_of(source));
    buffer_byte(&json, '}');
    chat_write(&fixture, "tokenizer_config.json", &json);
    ChatModel *model = chat_open(&fixture, 1, 1);
    TEST(model->text_parts);
    TEST_MSG(chat_prompt(model, &prompt, &arena, &tokens, &media, &error), "%s", error.text);
    spell(&tokens, text, sizeof text);
    TEST_MSG(!strcmp(text, "system: Be[E]user: Hi[E]assistant: [E]user: ab[E]"), "%s", text);
    tokens_free(&tokens);
    arena_free(&arena);
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

/* Tools and calls as templates see them; as plain text for templates that do not. */
static void test_tool_prompt(void) {
    static const char source[] =
        "{% for m in messages %}{{ m.role }}:{{ m.content + '' }}{% for c in m.tool_calls or [] %}({{ c.function.name "
        "}} "
        "{{ c.function.arguments.a }} {{ c.id }}){% endfor %}{{ m.name or '' }}{{ m.tool_call_id or '' }}"
        "{{ m.reasoning_content or '' }};{% endfor %}{{ (tools or [{'function': {'name': 'none'}}])[0].function.name "
        "}}";
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    ChatModel *model = chat_open(&fixture, 1, 1);
    Arena arena = {0};
    PromptMedia media;
    Error error = {0};
    ContentPart answered[] = {{.kind = CONTENT_REASONING, .text = SLICE("hm")},
        {.kind = CONTENT_TOOL_CALL, .call = {SLICE("i1"), SLICE("f"), SLICE("{\"a\": 1}"), NULL}},
        {.kind = CONTENT_TOOL_CALL, .call = {SLICE("i2"), SLICE("g"), SLICE("no"), NULL}}};
    answered[1].call.object = json_parse(&arena, answered[1].call.arguments, &error);
    const ChatMessage messages[] = {{.role = "user", CHAT_TEXT(SLICE("Hi"))},
        {.role = "assistant", .parts = answered, .part_count = 3},
        {.role = "tool", CHAT_TEXT(SLICE("5")), .name = SLICE("f"), .call_id = SLICE("i1")},
        {.role = "tool", CHAT_TEXT(SLICE("6")), .call_id = SLICE("i2")}};
    const ChatPrompt prompt = {.messages = messages,
        .message_count = 4,
        .tools = json_parse(&arena, SLICE("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"), &error)};
    Template *own = model->template;
    model->template = template_compile(slice_of(source), &error);
    TEST_MSG(model->template && tool_prompt_known(model), "%s", error.text);
    Tokens tokens = {0};
    char text[2048];
    TEST_MSG(chat_prompt(model, &prompt, &arena, &tokens, &media, &error), "%s", error.text);
    spell(&tokens, text, sizeof text);
    TEST_MSG(!strcmp(text, "user:Hi;assistant:(f 1 i1)(g  i2)hm;tool:5fi1;tool:6i2;f"), "%s", text);
    tokens_free(&tokens);
    template_free(model->template);
    model->template = own;

    ChatPrompt plain;
    tokens = (Tokens){0};
    TEST(!tool_prompt_known(model));
    TEST_MSG(tool_prompt_spell(&prompt, &arena, &plain, &error), "%s", error.text);
    TEST_MSG(chat_prompt(model, &plain, &arena, &tokens, &media, &error), "%s", error.text);
    spell(&tokens, text, sizeof text);
    TEST_MSG(strstr(text, "\n{\"name\":\"f\"}\n\nHi[E]") != NULL, "%s", text);
    TEST_MSG(
        strstr(text,
            "[S]assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>") !=
            NULL,
        "%s", text);
    TEST_MSG(
        strstr(text, "[S]user\n<tool_response>\n5\n</tool_response>\n<tool_response>\n6\n</tool_response>[E]") != NULL,
        "%s", text);
    tokens_free(&tokens);

    const ChatMessage begun[] = {messages[0], {.role = "assistant", CHAT_TEXT(SLICE("It is"))}};
    const ChatPrompt open = {.messages = begun, .message_count = 2, .continues = true};
    tokens = (Tokens){0};
    TEST_MSG(tool_prompt_spell(&open, &arena, &plain, &error), "%s", error.text);
    TEST_MSG(chat_prompt(model, &plain, &arena, &tokens, &media, &error), "%s", error.text);
    spell(&tokens, text, sizeof text);
    TEST_MSG(strlen(text) > 5 && !strcmp(text + strlen(text) - 5, "It is"), "%s", text);
    tokens_free(&tokens);
    arena_free(&arena);
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

/* ---- answers ---- */

typedef struct Answers {
    Tokens prompts[3];
    GenerationOptions options;
    Buffer texts[12];
    Finish finishes[12];
    int logprobs[12];
} Answers;

static void answers_init(Answers *a, const ChatModel *model, int prompts, int choices) {
    *a = (Answers){0};
    Error error = {0};
    static const char *const texts[] = {"Hello", "One", "What?"};
    for (int i = 0; i < prompts; i++)
        CHECK(tokenizer_encode(model->tokenizer, slice_of(texts[i]), CONTROL_AS_TEXT, true, &a->prompts[i], &error));
    a->options = (GenerationOptions){.prompts = a->prompts,
        .prompt_count = prompts,
        .request = {.choices = choices,
            .max_tokens = 40,
            .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7, .logprobs = -1}}};
}

static void answers_free(Answers *a) {
    for (int i = 0; i < 3; i++) tokens_free(&a->prompts[i]);
    for (int i = 0; i < 12; i++) buffer_free(&a->texts[i]);
}

/* Reads to the end, piece by piece. */
static void read_answers(Answers *a, Generation *g) {
    Error error = {0};
    while (!generation_done(g)) {
        if (!generation_pump(g, TIMEOUT_MS, &error)) {
            TEST_MSG(false, "%s", error.text);
            return;
        }
        for (int i = 0; i < g->choice_count; i++) {
            Choice *choice = &g->choices[i];
            buffer_slice(&a->texts[i], buffer_view(&choice->text));
            buffer_clear(&choice->text);
            a->logprobs[i] += choice->token_count;
            choice->token_count = 0;
            a->finishes[i] = choice->finish;
        }
    }
}

static void run(Answers *a, const ChatModel *model) {
    Generation g;
    Error error = {0};
    for (int i = 0; i < 12; i++) buffer_clear(&a->texts[i]), a->logprobs[i] = 0;
    const bool ok = generation_open(&g, model, &a->options, &error);
    TEST_MSG(ok, "%s", error.text);
    if (!ok) return;
    read_answers(a, &g);
    generation_close(&g);
}

/* Several prompts × choices give what each gives alone; a stop string ends a text just before itself, however its
 * characters fall into tokens. */
static void test_answers(void) {
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    ChatModel *model = chat_open(&fixture, 4, 8);
    Answers all, one;
    answers_init(&all, model, 3, 2);
    run(&all, model);
    for (int p = 0; p < 3; p++) {
        answers_init(&one, model, 3, 2);
        one.options.prompts += p;
        one.options.prompt_count = 1;
        one.options.request.sampling.logprobs = 2;
        run(&one, model);
        for (int c = 0; c < 2; c++) {
            TEST(all.texts[2 * p + c].size >= 20 && all.finishes[2 * p + c] == FINISH_LENGTH);
            TEST(slice_equal(buffer_view(&all.texts[2 * p + c]), buffer_view(&one.texts[c])));
            TEST(all.logprobs[2 * p + c] == 0 && one.logprobs[c] == 40);
        }
        TEST(!slice_equal(buffer_view(&one.texts[0]), buffer_view(&one.texts[1])));
        answers_free(&one);
    }
    const Slice text = buffer_view(&all.texts[0]);
    for (size_t at = 1; at + 3 < 20; at++) {
        const Slice stops[] = {{text.data + at, 3}, SLICE("not in there")};
        const size_t first = (size_t)((const char *)memmem(text.data, text.size, stops[0].data, 3) - text.data);
        answers_init(&one, model, 1, 1);
        one.options.stops = stops;
        one.options.stop_count = 2;
        run(&one, model);
        TEST(one.finishes[0] == FINISH_STOP && slice_equal(buffer_view(&one.texts[0]), (Slice){text.data, first}));
        answers_free(&one);
    }
    answers_free(&all);
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

static void test_ends(void) {
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    fake.gated = true;
    ChatModel *model = chat_open(&fixture, 1, 0);
    Answers a;
    Generation g, other = {0};
    Error error = {0};
    answers_init(&a, model, 1, 1);
    TEST(generation_open(&g, model, &a.options, &error));
    TEST(!generation_open(&other, model, &a.options, &error) && error.code == ERROR_BUSY && !other.requests);
    generation_close(&other);
    fake_permit(3);
    fake_wait_arrived(4);
    generation_cancel(&g);
    fake_open_gate();
    read_answers(&a, &g);
    TEST(a.finishes[0] == FINISH_CANCELLED && g.choices[0].generated >= 3);
    generation_close(&g);

    fake.fail_at = fake_steps() + 2;
    TEST(generation_open(&g, model, &a.options, &error));
    error = (Error){0};
    while (!generation_done(&g) && generation_pump(&g, TIMEOUT_MS, &error)) continue;
    TEST(error.code == ERROR_DEVICE);
    generation_close(&g);

    answers_free(&a);
    answers_init(&a, model, 1, 1);
    a.prompts[0].count = 0;
    TEST(!generation_open(&g, model, &a.options, &error) && error.code == ERROR_USAGE);
    answers_free(&a);
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

/* Memory that ends while text is held back is an error, not a text with a gap. */
static void test_no_memory(void) {
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    ChatModel *model = chat_open(&fixture, 1, 1);
    for (int kind = 0; kind < 2; kind++) {
        Answers a;
        Generation g;
        Error error = {0};
        answers_init(&a, model, 1, 1);
        TEST(generation_open(&g, model, &a.options, &error));
        if (kind == 0) g.choices[0].stream.held.failed = true; /* as a push leaves it when memory ends */
        if (kind == 1) g.choices[0].text.limit = 10;
        bool ok = true;
        while (ok && !generation_done(&g)) ok = generation_pump(&g, TIMEOUT_MS, &error);
        TEST_MSG(!ok && error.code == ERROR_MEMORY && strstr(error.text, "text"), "kind %d: %s", kind, error.text);
        generation_close(&g);
        answers_free(&a);
    }
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

/* A reader of several prompts sleeps while nothing is new, and wakes for any of them. */
static void test_waiting(void) {
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    fake.gated = true;
    ChatModel *model = chat_open(&fixture, 3, 1);
    Answers a;
    Generation g;
    Error error = {0};
    answers_init(&a, model, 3, 1);
    TEST(generation_open(&g, model, &a.options, &error));
    fake_wait_arrived(1);
    int pumps = 0;
    for (const int64_t end = clock_ns() + 200000000; clock_ns() < end; pumps++)
        TEST(generation_pump(&g, 50, &error) && generation_answer_tokens(&g) == 0);
    TEST_MSG(pumps <= 8, "woke %d times in 200 ms without anything new", pumps);
    fake_permit(4);
    fake_wait_arrived(5);
    const int64_t start = clock_ns();
    while (generation_answer_tokens(&g) < 3) TEST(generation_pump(&g, TIMEOUT_MS, &error));
    TEST(clock_ns() - start < 10000000000);
    fake_open_gate();
    read_answers(&a, &g);
    TEST(generation_done(&g));
    generation_close(&g);
    answers_free(&a);
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

/* ---- answers taken apart ---- */

/* Reasoning that the prompt has opened ends at its marker; text and events say the same. */
static void test_parsed(void) {
    static const ReasoningFormat reasoning = {"<think>", "o"};
    ChatFixture fixture;
    chat_fixture_open(&fixture, true);
    ChatModel *model = chat_open(&fixture, 1, 4);
    Error error = {0};
    Answers plain;
    answers_init(&plain, model, 1, 1);
    tokens_free(&plain.prompts[0]);
    CHECK(tokenizer_encode(model->tokenizer, SLICE("Go <think>"), CONTROL_AS_TEXT, true, &plain.prompts[0], &error));
    plain.options.request.max_tokens = 400;
    run(&plain, model);
    const Slice text = buffer_view(&plain.texts[0]);
    const char *end = memchr(text.data, 'o', text.size);
    TEST(end != NULL && plain.finishes[0] == FINISH_LENGTH);

    model->reasoning = &reasoning;
    plain.options.parsed = true;
    Generation g;
    TEST_MSG(generation_open(&g, model, &plain.options, &error), "%s", error.text);
    while (!generation_done(&g)) CHECK(generation_pump(&g, TIMEOUT_MS, &error));
    const Choice *choice = &g.choices[0];
    TEST(choice->events.count == 2 && choice->text.size == 0);
    if (end && choice->events.count == 2) {
        const Slice first = answer_event_text(&choice->events, 0), second = answer_event_text(&choice->events, 1);
        TEST(choice->events.list[0].kind == ANSWER_REASONING && choice->events.list[1].kind == ANSWER_CONTENT);
        TEST(first.size <= (size_t)(end - text.data) && memmem(text.data, text.size, first.data, first.size));
        TEST(second.size < text.size && !memcmp(text.data + text.size - second.size, second.data, second.size));
    }
    TEST(choice->reasoned > 0 && choice->reasoned < choice->generated && choice->generated == 400);
    TEST(generation_reasoning_tokens(&g) == choice->reasoned);
    generation_close(&g);
    answers_free(&plain);
    model->reasoning = NULL;
    chat_model_close(model);
    chat_fixture_close(&fixture);
}

int main(void) {
    log_set_level(LOG_ERROR);
    test_prompt();
    test_text_parts();
    test_tool_prompt();
    test_parsed();
    test_answers();
    test_ends();
    test_no_memory();
    test_waiting();
    return test_done();
}
