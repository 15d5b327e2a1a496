/* POST /v1/audio/transcriptions and /v1/audio/translations: a form with a file becomes a chat of one message, whose
 * answer is the text. The model's answers have no times, so formats that show them are refused. */
#include <stdio.h>
#include <stdlib.h>

#include "server/api/answer_writer.h"
#include "server/api/endpoint.h"
#include "server/api/field_readers.h"
#include "server/api/fields.h"
#include "server/api/members.h"
#include "server/api/message_builder.h"
#include "server/api/reasoning.h"
#include "server/api/request.h"

/* ---- the request ---- */

/* Names of languages as models know them; other values of `language` are used as they are. */
static const struct {
    const char *code, *name;
} languages[] = {{"ar", "Arabic"}, {"bn", "Bengali"}, {"cs", "Czech"}, {"da", "Danish"}, {"de", "German"},
    {"el", "Greek"}, {"en", "English"}, {"es", "Spanish"}, {"fa", "Persian"}, {"fi", "Finnish"}, {"fr", "French"},
    {"he", "Hebrew"}, {"hi", "Hindi"}, {"hu", "Hungarian"}, {"id", "Indonesian"}, {"it", "Italian"}, {"ja", "Japanese"},
    {"ko", "Korean"}, {"nl", "Dutch"}, {"no", "Norwegian"}, {"pl", "Polish"}, {"pt", "Portuguese"}, {"ro", "Romanian"},
    {"ru", "Russian"}, {"sv", "Swedish"}, {"th", "Thai"}, {"tr", "Turkish"}, {"uk", "Ukrainian"}, {"ur", "Urdu"},
    {"vi", "Vietnamese"}, {"zh", "Chinese"}};

static Slice language_name(Slice given) {
    for (size_t i = 0; i < COUNT_OF(languages); i++)
        if (slice_is(given, languages[i].code)) return slice_of(languages[i].name);
    return given;
}

FIELD_READER(read_form_temperature) {
    char text[32] = "", *end = text;
    snprintf(text, sizeof text, "%.*s", (int)(value->size < sizeof text ? value->size : 0), value->string);
    const double temperature = strtod(text, &end);
    if (end == text || *end || !(temperature >= 0 && temperature <= 2))
        return api_fail(error, 400, "invalid_value", field, "Invalid '%s': expected a number from 0 to 2.", field);
    r->generation.request.sampling.temperature = (float)temperature;
    return true;
}

FIELD_READER(read_form_stream) {
    static const char *const words[] = {"true", "false", "True", "False", "1", "0"};
    const Slice word = json_slice(value);
    r->response.stream = slice_is(word, "true") || slice_is(word, "True") || slice_is(word, "1");
    return read_word(value, field, words, COUNT_OF(words), COUNT_OF(words), error);
}

FIELD_READER(read_transcript_format) {
    static const char *const words[] = {"json", "text", "srt", "verbose_json", "vtt", "diarized_json"};
    r->response.plain = slice_is(json_slice(value), "text");
    return read_word(value, field, words, COUNT_OF(words), 2, error);
}

FIELD_READER(read_only_auto) {
    static const char *const words[] = {"auto", "server_vad"};
    return read_word(value, field, words, COUNT_OF(words), 1, error);
}

/* What the model is asked for. */
static bool write_instruction(const ChatRequest *r, const Json *body, bool translate, Slice *text, ApiError *error) {
    const Json *language = member_get(body, "language"), *prompt = member_get(body, "prompt");
    const Slice name = language ? language_name(json_slice(language)) : SLICE("its original language");
    Buffer out = {0};
    if (prompt && prompt->size > 0) {
        buffer_text(&out, "Context: ");
        buffer_slice(&out, json_slice(prompt));
        buffer_byte(&out, '\n');
    }
    if (translate)
        buffer_text(&out,
            "Transcribe the following speech segment and translate it into English. Only output the "
            "translation, without newlines.");
    else
        buffer_printf(&out,
            "Transcribe the following speech segment in %.*s. Only output the transcription, without newlines. Write "
            "numbers as digits.",
            SLICE_SHOWN(name));
    const char *copy = out.failed ? NULL : arena_copy(r->arena, buffer_view(&out));
    *text = (Slice){copy, copy ? out.size : 0};
    buffer_free(&out);
    return copy || api_out_of_memory(error);
}

static bool read_form(ChatRequest *r, Api api, const Json *body, ApiError *error) {
    r->input_field = "file";
    r->generation.request.sampling.temperature = 0;
    r->reasoning.off_unless_given = true;
    if (!fields_read(r, api, body, error)) return false;
    const Json *file = member_get(body, "file");
    if (!file) return api_missing("file", error);
    const ChatMedia media = {.bytes = json_slice(file), .part = "file", .field = "file", .type = SLICE("audio")};
    Slice instruction;
    if (!write_instruction(r, body, api == API_TRANSLATION, &instruction, error)) return false;
    MessageBuilder builder = {.arena = r->arena};
    messages_begin(&builder, "user");
    messages_add_media(&builder, CONTENT_AUDIO, &media);
    messages_add_text(&builder, instruction);
    return messages_end(&builder, r, error) && request_settle_chat(r, error);
}

bool request_read_transcription(ChatRequest *r, const Json *body, ApiError *error) {
    return read_form(r, API_TRANSCRIPTION, body, error);
}

bool request_read_translation(ChatRequest *r, const Json *body, ApiError *error) {
    return read_form(r, API_TRANSLATION, body, error);
}

/* ---- the answer ---- */

static void write_usage(const Exchange *x, Buffer *out) {
    const long long prompt = x->generation.prompt_tokens, answer = generation_answer_tokens(&x->generation);
    buffer_printf(out,
        ",\"usage\":{\"type\":\"tokens\",\"input_tokens\":%lld,\"input_token_details\":{\"text_tokens\":%lld,"
        "\"audio_tokens\":%d},\"output_tokens\":%lld,\"total_tokens\":%lld}}",
        prompt, prompt - x->audio_tokens, x->audio_tokens, answer, prompt + answer);
}

static void write_whole(Exchange *x, Buffer *out) {
    const AnswerEvents *events = &x->generation.choices[0].events;
    if (x->response_options.plain) {
        for (int i = 0; i < events->count; i++)
            if (events->list[i].kind == ANSWER_CONTENT) buffer_slice(out, answer_event_text(events, i));
        buffer_byte(out, '\n');
        return;
    }
    buffer_text(out, "{\"text\":");
    answer_write_text(events, ANSWER_CONTENT, out);
    write_usage(x, out);
}

static void write_delta(Exchange *x, int index, Buffer *out) {
    Choice *choice = &x->generation.choices[index];
    for (int i = 0; i < choice->events.count; i++) {
        if (choice->events.list[i].kind != ANSWER_CONTENT) continue;
        buffer_text(out, "data: {\"type\":\"transcript.text.delta\"");
        member_text("delta", answer_event_text(&choice->events, i), out);
        buffer_text(out, "}\n\n");
        answer_events_append(&x->kept, &choice->events, i);
    }
    out->failed |= x->kept.failed;
    answer_events_clear(&choice->events);
    choice->token_count = 0;
}

static void write_finish(Exchange *x, int index, Buffer *out) {
    buffer_text(out, "data: {\"type\":\"transcript.text.done\",\"text\":");
    answer_write_text(&x->kept, ANSWER_CONTENT, out);
    write_usage(x, out);
    buffer_text(out, "\n\n");
}

const Endpoint endpoint_transcription = {
    .id_prefix = "transcript_",
    .done = "",
    .heartbeat = ": waiting\n\n",
    .read = request_read_transcription,
    .make_prompts = chat_make_prompts,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_whole = write_whole,
};

const Endpoint endpoint_translation = {
    .id_prefix = "transcript_",
    .done = "",
    .heartbeat = ": waiting\n\n",
    .read = request_read_translation,
    .make_prompts = chat_make_prompts,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_whole = write_whole,
};
