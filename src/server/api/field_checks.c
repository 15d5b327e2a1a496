#include "server/api/field_checks.h"

/* Known words: the first `neutral` ones change nothing, the others are refused. */
#define WORD_READER(reader, neutral, ...)                                                                              \
    FIELD_READER(reader) {                                                                                             \
        static const char *const words[] = {__VA_ARGS__};                                                              \
        return read_word(value, field, words, COUNT_OF(words), neutral, error);                                        \
    }

WORD_READER(check_summary, 4, "auto", "concise", "detailed", "none")
WORD_READER(check_truncation, 1, "disabled", "auto")
WORD_READER(check_thinking_type, 3, "enabled", "disabled", "adaptive")
WORD_READER(check_thinking_display, 1, "summarized", "omitted")
WORD_READER(check_message_tier, 2, "auto", "standard_only")
WORD_READER(check_encoding, 2, "float", "base64")
WORD_READER(check_speed, 1, "standard", "fast")

/* Additional output. All known values but the last one are no-ops: reasoning is always included, and the others concern
 * tools and inputs that are refused. */
FIELD_READER(check_include) {
    static const char *const words[] = {"reasoning.encrypted_content", "web_search_call.results",
        "web_search_call.action.sources", "file_search_call.results", "code_interpreter_call.outputs",
        "computer_call_output.output.image_url", "message.input_image.image_url", "message.output_text.logprobs"};
    for (JSON_EACH(item, value)) {
        Slice text;
        if (!api_string(item, field, &text, error) ||
            !read_word(item, field, words, COUNT_OF(words), COUNT_OF(words) - 1, error))
            return false;
    }
    return true;
}

FIELD_READER(check_keep_alive) {
    Slice text;
    return json_is_number(value) || api_string(value, field, &text, error);
}

/* The window of the repetition penalty: all there is, or nothing, which is no penalty. */
FIELD_READER(check_repeat_last) {
    const int64_t count = (int64_t)json_number(value);
    return count == -1 || count == 0 || api_unsupported(field, error);
}

FIELD_READER(check_only_zero) { return json_number(value) == 0 || api_unsupported(field, error); }
FIELD_READER(check_only_one) { return json_number(value) == 1 || api_unsupported(field, error); }
