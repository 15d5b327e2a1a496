#include "cli/announce.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { ADDRESS_MAX = 128 };

/* The address for clients on this machine, or with --lan for those of the network. */
static void write_address(const Server *server, const ServerOptions *options, char address[ADDRESS_MAX]) {
    const char *host = options->host;
    const bool any = !strcmp(host, "0.0.0.0") || !strcmp(host, "::"), six = strchr(host, ':') != NULL;
    snprintf(address, ADDRESS_MAX, "http%s://%s%s%s:%d", options->tls_certificate ? "s" : "", six && !any ? "[" : "",
        options->lan_address ? options->lan_address
            : any            ? "127.0.0.1"
                             : host,
        six && !any ? "]" : "", server_port(server));
}

void announce_ready_event(const Server *server, const ServerOptions *options) {
    char address[ADDRESS_MAX];
    write_address(server, options, address);
    Buffer line = {0};
    ModelStatus status;
    const char *separator = "";
    buffer_printf(&line,
        "{\"event\":\"ready\",\"engine\":\"apus\",\"version\":\"" APUS_VERSION "\",\"port\":%d,\"url\":",
        server_port(server));
    json_write_string(&line, slice_of(address));
    buffer_text(&line, ",\"models\":[");
    for (int i = 0; i < MODELS_MAX; i++) {
        if (!server_model(server, i, &status)) continue;
        buffer_text(&line, separator);
        json_write_string(&line, slice_of(status.name));
        separator = ",";
    }
    buffer_text(&line, "]}\n");
    if (!line.failed) fputs(line.data, stdout);
    fflush(stdout);
    buffer_free(&line);
}

void announce_exit(const Error *why) {
    Buffer line = {0};
    const bool port = why && !strncmp(why->text, "cannot listen", 13);
    buffer_printf(&line, "{\"event\":\"exiting\",\"reason\":\"%s\"",
        !why                                                        ? "requested"
            : why->code == ERROR_MEMORY || why->code == ERROR_LIMIT ? "out_of_memory"
            : port                                                  ? "port_conflict"
            : why->code == ERROR_USAGE                              ? "usage"
                                                                    : "model_load_failed");
    if (why) buffer_text(&line, ",\"message\":");
    if (why) json_write_string(&line, slice_of(why->text));
    buffer_text(&line, "}\n");
    if (!line.failed) fputs(line.data, stdout);
    fflush(stdout);
    buffer_free(&line);
}

/* A request's body as a word for the shell, whatever the model is called. */
static void quote_body(const char *name, Buffer *out) {
    Buffer json = {0};
    buffer_text(&json, "{\"model\":");
    json_write_string(&json, slice_of(name));
    buffer_text(&json, ",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}");
    buffer_byte(out, '\'');
    for (size_t i = 0; i < json.size; i++) buffer_text(out, json.data[i] == '\'' ? "'\\''" : (char[]){json.data[i], 0});
    buffer_byte(out, '\'');
    buffer_free(&json);
}

/* The models, with what one conversation may hold, how many run at once, and the cache that they share. */
static void print_models(const Server *server, const ServerOptions *options) {
    ModelStatus status;
    bool any = false;
    for (int i = 0; i < MODELS_MAX; i++) {
        if (!server_model(server, i, &status)) continue;
        any = true;
        if (status.state != MODEL_LOADED) {
            printf("  model    %s  loaded by its first request\n", status.name);
            continue;
        }
        char form[64] = "";
        kv_format_name(&options->models.engine.kv_format, form, sizeof form);
        printf("  model    %s  %d tokens of context, %d slots, KV cache of %.1f GB%s%s\n", status.name, status.context,
            status.stats.slots, (double)status.stats.kv_bytes_total * 1e-9, form[0] ? " as " : "", form);
    }
    if (!any) printf("  model    none: the app or POST /v1/jobs loads one\n");
}

void announce_ready(const Server *server, const ServerOptions *options, double seconds) {
    const bool key = options->api_keys.data != NULL;
    char address[ADDRESS_MAX];
    write_address(server, options, address);
    printf("ready in %.2f s\n\n"
           "  app      %s\n"
           "  API      %s/v1   base URL of OpenAI clients\n"
           "           %s      base URL of Anthropic and Ollama clients\n"
           "  metrics  %s/metrics\n",
        seconds, address, address, address, address);
    print_models(server, options);
    printf("  API key  %s\n\n",
        key && options->lan_directory ? "required, or that of a paired device"
            : options->lan_directory  ? "that of a paired device"
            : key                     ? "required"
                                      : "none (this machine only)");
    Buffer body = {0};
    if (options->models.count) quote_body(options->models.sources[0].name, &body);
    if (body.size)
        printf("  curl %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n    -d %s\n\n", address,
            key ? " -H 'Authorization: Bearer KEY'" : "", body.data);
    printf("Ctrl-C stops the server.\n");
    buffer_free(&body);
    fflush(stdout);
}
