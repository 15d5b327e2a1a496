/* Load, prompt, answers and unload with every allocation failing once: no crash, nothing left behind, an error that
 * says what failed, and a model that lives answers the next request. */
#include "allocations.h"
#include "chat/chat_fixture.h"
#include "chat/generation.h"
#include "chat/prompt.h"

enum { TIMEOUT_MS = 60000, TOKENS = 12 };

static ChatFixture fixture;

static bool read_all(const ChatModel *model, const GenerationOptions *options, Error *error) {
    Generation g;
    if (!generation_open(&g, model, options, error)) return false;
    bool ok = true;
    while (ok && !generation_done(&g)) {
        ok = generation_pump(&g, TIMEOUT_MS, error);
        for (int i = 0; i < g.choice_count && ok; i++) CHECK(g.choices[i].token_count == g.choices[i].generated);
    }
    for (int i = 0; i < g.choice_count && ok; i++)
        TEST(g.choices[i].generated == TOKENS && g.choices[i].text.size >= TOKENS / 2);
    generation_close(&g);
    return ok;
}

static bool ask(const ChatModel *model, Error *error) {
    const ChatMessage messages[] = {{.role = "system", CHAT_TEXT(SLICE("Be short.")), .name = SLICE("Ann")},
        {.role = "user", CHAT_TEXT(SLICE("How are you? \xC3\xA9"))}};
    const Slice stops[] = {SLICE("never, for it is too long"), SLICE("nor this, which is longer still")};
    Arena arena = {0};
    PromptMedia media;
    Tokens prompts[2] = {0};
    const Json *arguments = json_parse(&arena, SLICE("{\"mood\":{\"kind\":\"k\",\"words\":[1,2]}}"), error);
    bool ok = arguments;
    for (size_t i = 0; i < 2 && ok; i++) {
        const ChatPrompt prompt = {messages + i, 2 - i, i ? arguments : NULL, NULL, false};
        ok = chat_prompt(model, &prompt, &arena, &prompts[i], &media, error);
    }
    arena_free(&arena);
    const GenerationOptions options = {.prompts = prompts,
        .prompt_count = 2,
        .request = {.choices = 2,
            .max_tokens = TOKENS,
            .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 3, .logprobs = 2}},
        .stops = stops,
        .stop_count = 2};
    ok = ok && read_all(model, &options, error);
    for (int i = 0; i < 2; i++) tokens_free(&prompts[i]);
    return ok;
}

static bool live(Error *error) {
    const EngineOptions options = chat_engine_options(&fixture, 4, 4);
    ChatModel *model = chat_model_open("fake", &options, error);
    if (!model) return false;
    const bool ok = ask(model, error);
    Error second = {0};
    if (allocations_recover()) TEST_MSG(ask(model, &second), "the next request fails: %s", second.text);
    chat_model_close(model);
    return ok;
}

int main(int argc, char **argv) {
    allocations_verbose = argc > 1;
    log_set_level(LOG_ERROR);
    chat_fixture_open(&fixture, true);
    for (int mode = ALLOCATIONS_ONE; mode <= ALLOCATIONS_ALL; mode++)
        printf("%ld allocations\n", allocations_sweep("a model that chats", live, mode));
    chat_fixture_close(&fixture);
    return test_done();
}
