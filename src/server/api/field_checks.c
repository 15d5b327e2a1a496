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

/* Seconds as a number, or a text of numbers with units, as in "1h30m". Negative: for ever. */
FIELD_READER(read_keep_alive) {
    enum { LONGEST_S = 10 * 365 * 86400 };
    double seconds = 0;
    Slice text = {0};
    if (json_is_number(value)) {
        seconds = json_number(value);
    } else if (!api_string(value, field, &text, error)) {
        return false;
    }
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"s", 1}, {"m", 60}, {"h", 3600}, {"", 1}};
    const bool negative = text.size > 0 && text.data[0] == '-';
    bool ok = !text.data || text.size > (size_t)negative;
    for (size_t at = negative; ok && at < text.size;) {
        double number = 0, scale = 1;
        const size_t begin = at;
        for (bool point = false; at < text.size && strchr("0123456789.", text.data[at]) && text.data[at]; at++) {
            if (text.data[at] == '.') {
                point = true;
                continue;
            }
            number = number * 10 + (text.data[at] - '0');
            if (point) scale *= 10;
        }
        size_t unit = 0;
        const Slice rest = {text.data + at, text.size - at};
        while (!slice_starts(rest, slice_of(units[unit].unit))) unit++;
        ok = at > begin && (units[unit].unit[0] || rest.size == 0);
        at += strlen(units[unit].unit);
        seconds += number / scale * units[unit].seconds;
    }
    if (!ok || seconds > LONGEST_S)
        return api_fail(error, 400, "invalid_value", field,
            "Invalid '%s': expected seconds, or a text such as '5m', '1h30m' or '-1'.", field);
    r->keep_alive_given = true;
    r->keep_alive_ms = negative || seconds < 0 ? -1 : (int64_t)(seconds * 1e3);
    return true;
}

FIELD_READER(check_only_zero) { return json_number(value) == 0 || api_unsupported(field, error); }
FIELD_READER(check_only_one) { return json_number(value) == 1 || api_unsupported(field, error); }
