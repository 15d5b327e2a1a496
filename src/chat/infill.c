#include "chat/infill.h"

/* Tokens before the prefix, the suffix and the middle. */
typedef struct Marks {
    const char *before, *after, *middle;
} Marks;

static const Marks all_marks[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, /* Qwen2.5-Coder, CodeGemma */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       /* StarCoder, Granite */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},       /* SantaCoder */
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}, /* DeepSeek-Coder */
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"},          /* Code Llama */
};

bool infill_prompt(const ChatModel *model, Slice before, Slice after, Tokens *tokens, Error *error) {
    const Tokenizer *t = model->tokenizer;
    for (size_t i = 0; i < COUNT_OF(all_marks); i++) {
        const Marks *m = &all_marks[i];
        int32_t first, second, third;
        if (!tokenizer_id(t, slice_of(m->before), &first) || !tokenizer_id(t, slice_of(m->after), &second) ||
            !tokenizer_id(t, slice_of(m->middle), &third))
            continue;
        return tokenizer_encode(t, SLICE(""), CONTROL_AS_TEXT, true, tokens, error) &&
            ((tokens_push(tokens, first) && tokenizer_encode(t, before, CONTROL_AS_TEXT, false, tokens, error) &&
                 tokens_push(tokens, second) && tokenizer_encode(t, after, CONTROL_AS_TEXT, false, tokens, error) &&
                 tokens_push(tokens, third)) ||
                fail(error, ERROR_MEMORY, "no memory for a prompt"));
    }
    return fail(error, ERROR_UNSUPPORTED, "the model '%s' has no marks for a text with a suffix", model->name);
}
