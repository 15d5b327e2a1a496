/* tokenizer.json, or a tokenizer.model (its first byte is a line feed), and behind a line "==CONFIG=="
 * tokenizer_config.json: any bytes give a tokenizer or an error; a tokenizer encodes and decodes anything, with ids of
 * its vocabulary, and streams what it decodes. */
#include <stdint.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/tokenizer/internal.h"
#include "text/tokenizer/sentencepiece.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const texts[] = {"", "a",
    " Hello  world's 12345\n\n\te\xCC\x81 \xEF\xAC\x81 \xE4\xB8\xAD\xE6\x96\x87<s>\xE2\x96\x81x</s>",
    "aaaaaaaaaaaaaaaabbbbbbb ab ab", "<|im_start|>user\r\n<think>\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD</think> "};

static void check_decode(const Tokenizer *t, const Tokens *ids) {
    Error error = {0};
    Buffer whole = {.limit = 1 << 24}, streamed = {.limit = 1 << 24}, bytes = {.limit = 1 << 24};
    bool ok = tokenizer_decode(t, ids->ids, ids->count, false, &whole, &error);
    CHECK(!ok || !whole.size || utf8_valid(buffer_view(&whole)));
    Detokenizer *d = detokenizer_new(t, true, &error);
    for (size_t i = 0; d && i < ids->count; i++) {
        if (!detokenizer_push(d, ids->ids[i], &streamed, &error)) break;
        if (!tokenizer_bytes(t, ids->ids[i], &bytes, &error)) CHECK(error.text[0]);
    }
    CHECK(!d || detokenizer_finish(d, &streamed, &error) || error.text[0]);
    CHECK(!streamed.size || utf8_valid(buffer_view(&streamed)));
    detokenizer_free(d);
    buffer_free(&whole);
    buffer_free(&streamed);
    buffer_free(&bytes);
}

static void check_tokenizer(const Tokenizer *t) {
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        Tokens ids = {0};
        Error error = {0};
        Slice text = slice_of(texts[i]);
        size_t half = text.size / 2;
        while (half < text.size && ((uint8_t)text.data[half] & 0xC0) == 0x80) half++;
        Span spans[2] = {{{text.data, half}, true}, {{text.data + half, text.size - half}, false}};
        bool ok = tokenizer_encode(t, text, i & 1 ? CONTROL_AS_TEXT : CONTROL_RECOGNISED, i & 2, &ids, &error);
        ok = ok && tokenizer_encode_spans(t, spans, 2, &ids, &error);
        CHECK(ok || error.text[0]);
        for (size_t k = 0; k < ids.count; k++) CHECK(ids.ids[k] >= 0 && ids.ids[k] < tokenizer_vocab(t));
        check_decode(t, &ids);
        tokens_free(&ids);
    }
    int32_t few[] = {0, 1, 2, 3, tokenizer_vocab(t) - 1, tokenizer_vocab(t), INT32_MAX, -1};
    Tokens ids = {few, COUNT_OF(few), COUNT_OF(few)};
    check_decode(t, &ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char seam[] = "\n==CONFIG==\n";
    Slice json = {(const char *)data, size}, config = {"", 0};
    const char *at = size ? memmem(data, size, seam, sizeof seam - 1) : NULL;
    if (at) {
        json.size = (size_t)(at - json.data);
        config = (Slice){at + sizeof seam - 1, size - json.size - (sizeof seam - 1)};
    }
    Error error = {0};
    Buffer written = {0};
    const bool pieces = json.size && json.data[0] == '\n';
    const bool ok = !pieces || sentencepiece_json(json, config, SLICE(""), &written, &error);
    Tokenizer *t = ok ? tokenizer_parse(pieces ? buffer_view(&written) : json, config, &error) : NULL;
    CHECK(t || error.text[0]);
    buffer_free(&written);
    if (t) check_tokenizer(t);
    tokenizer_close(t);
    return 0;
}
