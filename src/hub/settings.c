/* What the environment says, in the order in which huggingface_hub's constants.py looks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "hub/hub.h"

enum { TOKEN_BYTES_MAX = 4096, TIMEOUT_DEFAULT_S = 10, TIMEOUT_MAX_S = 3600 };

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static bool variable_true(const char *name) {
    static const char *const words[] = {"1", "ON", "YES", "TRUE"};
    const char *value = variable(name);
    for (size_t i = 0; value && i < COUNT_OF(words); i++)
        if (!strcasecmp(value, words[i])) return true;
    return false;
}

static int variable_seconds(const char *name) {
    const char *value = variable(name);
    const long seconds = value ? strtol(value, NULL, 10) : 0;
    return seconds > 0 && seconds <= TIMEOUT_MAX_S ? (int)seconds : TIMEOUT_DEFAULT_S;
}

/* "~" and "~/…" are the home folder; $NAME and ${NAME} are variables, and stay as they are when they are not set. */
static void expand(const char *text, Buffer *out) {
    const char *home = variable("HOME");
    if (home && text[0] == '~' && (text[1] == '/' || !text[1])) {
        buffer_text(out, home);
        text++;
    }
    while (*text) {
        const bool braces = text[0] == '$' && text[1] == '{';
        const char *name = text + 1 + braces;
        const size_t length =
            text[0] == '$' ? strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") : 0;
        char key[128];
        if (length && length < sizeof key && (!braces || name[length] == '}')) {
            snprintf(key, sizeof key, "%.*s", (int)length, name);
            const char *value = getenv(key);
            const size_t whole = (size_t)(name - text) + length + braces;
            if (value)
                buffer_text(out, value);
            else
                buffer_append(out, text, whole);
            text += whole;
        } else {
            buffer_byte(out, *text++);
        }
    }
}

static const char *keep(HubSettings *settings, Buffer *text) {
    while (text->size > 1 && text->data[text->size - 1] == '/') text->size--;
    const char *copy = text->failed ? NULL : arena_copy(&settings->arena, buffer_view(text));
    buffer_free(text);
    return copy;
}

/* below: what is appended when the folder comes from `base`. */
static const char *folder(HubSettings *settings, const char *value, const char *base, const char *below) {
    Buffer text = {0};
    if (value)
        expand(value, &text);
    else
        buffer_printf(&text, "%s/%s", base, below);
    return keep(settings, &text);
}

static const char *home_folder(HubSettings *settings) {
    const char *own = variable("HF_HOME"), *xdg = variable("XDG_CACHE_HOME");
    if (own) return folder(settings, own, NULL, NULL);
    if (xdg) return folder(settings, NULL, xdg, "huggingface");
    return folder(settings, "~/.cache/huggingface", NULL, NULL);
}

/* A token that has blanks or control characters within would break the header that it goes into. */
static const char *clean_token(HubSettings *settings, Slice text, const char *source, Error *error) {
    while (text.size && strchr(" \t\r\n", text.data[text.size - 1])) text.size--;
    while (text.size && strchr(" \t\r\n", text.data[0])) text = (Slice){text.data + 1, text.size - 1};
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] > 0x20 && text.data[i] < 0x7F) continue;
        fail(error, ERROR_USAGE, "the token in %s has characters that no token has", source);
        return NULL;
    }
    settings->token_source = source;
    const char *token = arena_copy(&settings->arena, text);
    if (!token) fail(error, ERROR_MEMORY, "no memory for a token");
    return token;
}

static bool read_token(HubSettings *settings, const char *home, Error *error) {
    const char *given = variable("HF_TOKEN") ? "HF_TOKEN" : "HUGGING_FACE_HUB_TOKEN", *value = variable(given);
    if (variable_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return true;
    if (value) {
        settings->token = clean_token(settings, slice_of(value), given, error);
        if (!settings->token) return false;
    } else {
        const char *path = folder(settings, variable("HF_TOKEN_PATH"), home, "token");
        Buffer text = {0};
        Error none;
        if (!path) return fail(error, ERROR_MEMORY, "no memory for the path of a token");
        const bool there = file_read(path, TOKEN_BYTES_MAX, &text, &none);
        if (there) settings->token = clean_token(settings, buffer_view(&text), path, error);
        buffer_free(&text);
        if (there && !settings->token) return false;
    }
    if (settings->token && !settings->token[0]) settings->token = NULL;
    return true;
}

bool hub_settings_read(HubSettings *settings, Error *error) {
    *settings = (HubSettings){0};
    Buffer endpoint = {0};
    buffer_text(&endpoint, variable("HF_ENDPOINT") ? variable("HF_ENDPOINT") : "https://huggingface.co");
    settings->endpoint = keep(settings, &endpoint);
    const char *home = home_folder(settings);
    const char *cache = variable("HF_HUB_CACHE") ? variable("HF_HUB_CACHE") : variable("HUGGINGFACE_HUB_CACHE");
    settings->cache = home ? folder(settings, cache, home, "hub") : NULL;
    settings->offline = variable_true("HF_HUB_OFFLINE") || variable_true("TRANSFORMERS_OFFLINE");
    settings->connect_s = variable_seconds("HF_HUB_ETAG_TIMEOUT");
    settings->stall_s = variable_seconds("HF_HUB_DOWNLOAD_TIMEOUT");
    if (variable("SSL_CERT_FILE"))
        settings->certificates = arena_copy(&settings->arena, slice_of(variable("SSL_CERT_FILE")));
    bool ok = (settings->endpoint && settings->cache) || fail(error, ERROR_MEMORY, "no memory for the hub's settings");
    if (ok && settings->cache[0] != '/')
        ok = !strncmp(settings->cache, "~", 1) ? fail(error, ERROR_USAGE, "no cache directory: set HOME or HF_HOME")
                                               : ok;
    if (ok && strncmp(settings->endpoint, "https://", 8) && strncmp(settings->endpoint, "http://", 7))
        ok = fail(error, ERROR_USAGE, "HF_ENDPOINT is \"%s\": want https://HOST", settings->endpoint);
    ok = ok && read_token(settings, home, error);
    if (!ok) hub_settings_free(settings);
    return ok;
}

void hub_settings_free(HubSettings *settings) {
    arena_free(&settings->arena);
    *settings = (HubSettings){0};
}
