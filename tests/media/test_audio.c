/* Audio against libsndfile, libsoxr and transformers (make_audio.py): samples of tests/media/audio and spectrograms;
 * limits, damaged and foreign files. */
#include "base/file.h"
#include "base/json.h"
#include "media/audio.h"
#include "media/mel.h"
#include "test.h"

#define DATA "tests/media/audio"

static bool read_file(const char *name, Buffer *out) {
    char path[256];
    Error error = {0};
    snprintf(path, sizeof path, "%s/%s", DATA, name);
    const bool ok = file_read(path, AUDIO_BYTES_MAX, out, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok;
}

/* What this build has no library for is refused by name. */
static bool is_missing(const Error *error) {
    if (!strstr(error->text, "by this build")) return false;
    test_skip("%.60s", error->text);
    return true;
}

/* The largest distance of each every-th value from the golden ones. */
static double distance_of(const float *values, int count, const Json *golden) {
    const int64_t every = json_get(golden, "every")->integer;
    double worst = 0;
    int64_t at = 0;
    for (JSON_EACH(value, json_get(golden, "values"))) {
        const double off = at < count ? fabs(values[at] - json_number(value)) : INFINITY;
        worst = off > worst || isnan(off) ? off : worst;
        at += every;
    }
    return worst;
}

static void test_files(const Json *files) {
    for (JSON_EACH_PAIR(key, golden, files)) {
        Buffer file = {0};
        Audio audio = {0};
        Error error = {0};
        char name[64];
        snprintf(name, sizeof name, "%.*s", SLICE_SHOWN(json_slice(key)));
        if (!read_file(name, &file)) continue;
        const bool ok = audio_decode(buffer_view(&file), 30, &audio, &error);
        if (ok || !is_missing(&error)) {
            TEST_MSG(ok, "%s: %s", name, error.text);
            TEST_MSG(audio.count == json_get(golden, "count")->integer, "%s: %d samples", name, audio.count);
            const double off = distance_of(audio.samples, audio.count, golden);
            TEST_MSG(off <= 1e-5, "%s: off by %.2e", name, off);
        }
        audio_free(&audio);
        buffer_free(&file);
    }
}

/* make_audio.py has the same. */
static float *signal_of(int count) {
    float *out = malloc((size_t)count * sizeof *out);
    uint64_t state = 1;
    for (int i = 0; i < count; i++) {
        const int64_t noise = (int64_t)(test_random(&state) >> 48) - 32768;
        out[i] = (float)((double)(noise * (i / 400 % 5)) / (4 * 32768));
    }
    return out;
}

static void test_spectrograms(const MelRule *rule, const Json *goldens) {
    for (JSON_EACH(golden, goldens)) {
        const int samples = (int)json_get(golden, "samples")->integer, frames = mel_frames(rule, samples);
        TEST_MSG(frames == json_get(golden, "frames")->integer, "%d samples: %d frames", samples, frames);
        float *signal = signal_of(samples), *mel = calloc((size_t)frames * (size_t)rule->bins, sizeof *mel);
        Error error = {0};
        TEST_MSG(mel_compute(rule, signal, samples, mel, &error), "%s", error.text);
        const double off = distance_of(mel, frames * rule->bins, golden);
        TEST_MSG(off <= 1e-5, "%d samples: spectrogram off by %.2e", samples, off);
        free(signal);
        free(mel);
    }
}

static void test_short(void) {
    static const int samples[] = {0, 1, 160, 161, 800, 1600, 16000, 33333, 480000};
    static const int frames[] = {0, 0, 0, 1, 4, 9, 99, 208, 2999};
    for (size_t i = 0; i < COUNT_OF(samples); i++) {
        const int found = mel_frames(&mel_gemma4, samples[i]);
        TEST_MSG(found == frames[i], "%d samples: %d frames, not %d", samples[i], found, frames[i]);
    }
    TEST(mel_frames(&mel_gemma3n, 0) == 0 && mel_frames(&mel_gemma3n, 512) == 0 &&
        mel_frames(&mel_gemma3n, 16000) == 97);
}

/* ---- limits ---- */

static void put(Buffer *out, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; i++) buffer_byte(out, (char)(value >> 8 * i));
}

/* A WAV file with a head that says `size` bytes of samples, and `samples` of them. */
static Buffer wav_of(uint32_t rate, uint32_t channels, uint32_t bits, uint32_t size, size_t samples) {
    Buffer out = {0};
    buffer_text(&out, "RIFF");
    put(&out, 36 + size, 4);
    buffer_text(&out, "WAVEfmt ");
    put(&out, 16, 4);
    put(&out, 1, 2);
    put(&out, channels, 2);
    put(&out, rate, 4);
    put(&out, rate * channels * bits / 8, 4);
    put(&out, channels * bits / 8, 2);
    put(&out, bits, 2);
    buffer_text(&out, "data");
    put(&out, size, 4);
    for (size_t i = 0; i < samples; i++) buffer_byte(&out, (char)i);
    return out;
}

static void check_refused(Buffer file, double seconds_max, ErrorCode code, const char *part) {
    Audio audio = {0};
    Error error = {0};
    const bool ok = audio_decode(buffer_view(&file), seconds_max, &audio, &error);
    TEST_MSG(!ok && error.code == code && strstr(error.text, part) && !audio.samples, "%s: %d, %s", part, error.code,
        error.text);
    audio_free(&audio);
    buffer_free(&file);
}

static Buffer text_of(const char *text, size_t size) {
    Buffer out = {0};
    buffer_append(&out, text, size);
    return out;
}

static void test_limits(void) {
    check_refused(wav_of(16000, 1, 8, 0, 0), 30, ERROR_FORMAT, "no samples");
    check_refused(wav_of(16000, 1, 8, 30 * 16000 + 160, 30 * 16000 + 160), 30, ERROR_LIMIT, "30.01 s");
    check_refused(wav_of(16000, 9, 8, 90, 90), 30, ERROR_LIMIT, "9 channels");
    check_refused(wav_of(16000, 0, 8, 90, 90), 30, ERROR_FORMAT, "0 channels");
    check_refused(wav_of(200000, 1, 8, 90, 90), 30, ERROR_LIMIT, "200000");
    check_refused(wav_of(0, 1, 8, 90, 90), 30, ERROR_LIMIT, "0 samples per second");
    check_refused(wav_of(16000, 1, 12, 90, 90), 30, ERROR_UNSUPPORTED, "12 bits");
    check_refused(wav_of(16000, 1, 16, 1000, 900), 30, ERROR_FORMAT, "truncated");
    /* Two hours: by its bytes, and by its length. */
    check_refused(wav_of(2000, 1, 8, 14400000, 14400000), AUDIO_SECONDS_MAX, ERROR_LIMIT, "7200.00 s");
    check_refused(wav_of(16000, 1, 16, 26214400, 26214400), AUDIO_SECONDS_MAX, ERROR_LIMIT, "bytes");
    check_refused(text_of("", 0), 30, ERROR_UNSUPPORTED, "no WAV");
    check_refused(text_of("\0\0\0\x18"
                          "ftypM4A 0000",
                      16),
        30, ERROR_UNSUPPORTED, "M4A");
    check_refused(text_of("\x1A\x45\xDF\xA3 webm webm", 14), 30, ERROR_UNSUPPORTED, "WebM");
    check_refused(text_of("\xFF\xF1 AAC", 6), 30, ERROR_UNSUPPORTED, "AAC");
    Buffer file = wav_of(16000, 1, 8, 2, 2); /* a single sample of another rate becomes none */
    Audio audio = {0};
    Error error = {0};
    TEST(audio_decode(buffer_view(&file), 30, &audio, &error) && audio.count == 2 && audio.samples[0] == -1);
    audio_free(&audio);
    buffer_free(&file);
}

/* A tag in front, which FLAC files have from programs that know MP3. */
static void test_tag(void) {
    static const char tag[] = "ID3\4\0\0\0\0\1\2"; /* and 130 bytes */
    Buffer file = {0}, tagged = {0};
    Error error = {0};
    Audio plain, audio = {0};
    if (!read_file("16000-1.flac", &file)) return;
    buffer_append(&tagged, tag, sizeof tag - 1);
    for (int i = 0; i < 130; i++) buffer_byte(&tagged, 0);
    buffer_append(&tagged, file.data, file.size);
    if (audio_decode(buffer_view(&file), 30, &plain, &error)) {
        TEST_MSG(audio_decode(buffer_view(&tagged), 30, &audio, &error), "%s", error.text);
        TEST(audio.count == plain.count && !memcmp(audio.samples, plain.samples, (size_t)plain.count * sizeof(float)));
        audio_free(&audio);
        audio_free(&plain);
    } else {
        TEST_MSG(is_missing(&error), "%s", error.text);
    }
    buffer_free(&tagged);
    buffer_free(&file);
}

/* Not a number in floats. */
static void test_numbers(void) {
    Buffer file = {0};
    if (!read_file("float.wav", &file)) return;
    memset(file.data + file.size - 4, 0xFF, 4);
    check_refused(file, 30, ERROR_FORMAT, "not a number");
}

/* Every beginning of a file is refused or decoded; the allocations have the sizes of the beginnings, for sanitizers. */
static void test_cuts(const char *name) {
    Buffer file = {0};
    if (!read_file(name, &file)) return;
    const size_t step = SANITIZED ? 97 : 31;
    for (size_t size = 0; size < file.size; size += size < 200 ? 1 : step) {
        char *copy = malloc(size + !size);
        memcpy(copy, file.data, size);
        Audio audio;
        Error error = {0};
        if (!audio_decode((Slice){copy, size}, 30, &audio, &error)) TEST(error.code != ERROR_NONE && !audio.samples);
        audio_free(&audio);
        free(copy);
    }
    buffer_free(&file);
}

int main(void) {
    Buffer text = {0};
    Arena arena = {0};
    Error error = {0};
    if (read_file("goldens.json", &text)) {
        const Json *goldens = json_parse(&arena, buffer_view(&text), &error);
        TEST_MSG(goldens, "%s", error.text);
        if (goldens) {
            const Json *spectrograms = json_get(goldens, "spectrograms");
            test_files(json_get(goldens, "files"));
            test_spectrograms(&mel_gemma4, json_get(spectrograms, "gemma4"));
            test_spectrograms(&mel_gemma3n, json_get(spectrograms, "gemma3n"));
        }
    }
    test_short();
    test_limits();
    test_numbers();
    test_tag();
    test_cuts("odd-chunks.wav");
    test_cuts("rf64.wav");
    test_cuts("16000-1.mp3");
    test_cuts("16000-1.flac");
    test_cuts("16000-1.ogg");
    test_cuts("48000-1.opus");
    arena_free(&arena);
    buffer_free(&text);
    return test_done();
}
