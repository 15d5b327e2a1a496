#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"
#include "library/local.h"

extern char **environ;

enum { PORT_DEFAULT = 5413, CONNECT_S = 1, MODELS_SHOWN = 5 };

static const Command command = {"app", "", "Opens the web app of a running server in the browser.",
    "  apus serve qwen-0.5b &\n  apus app\n"
    "The program is $BROWSER, or the desktop's own. Without one the address is printed.\n"};

/* Whether a server of this machine listens there. */
static bool listens(int port) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const struct timeval patience = {.tv_sec = CONNECT_S};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return false;
    const bool connected = !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) &&
        !connect(fd, (const struct sockaddr *)&address, sizeof address);
    close(fd);
    return connected;
}

/* The program that opens an address; NULL: there is no desktop. */
static const char *opener(void) {
    const char *browser = getenv("BROWSER");
    if (browser && browser[0]) return browser;
#ifdef __APPLE__
    return "open";
#else
    return getenv("DISPLAY") || getenv("WAYLAND_DISPLAY") ? "xdg-open" : NULL;
#endif
}

static bool open_in_browser(const char *url) {
    const char *program = opener();
    if (!program) return false;
    char *const arguments[] = {(char *)program, (char *)url, NULL};
    pid_t child;
    int status;
    if (posix_spawnp(&child, program, NULL, NULL, arguments, environ)) return false;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int command_app(int argc, char **argv) {
    int64_t port = PORT_DEFAULT;
    bool tls = false;
    const Option options[] = {
        {"--port", "-p", OPTION_INTEGER, &port, 1, 65535, "N", "port of the server (5413)"},
        {"--tls", NULL, OPTION_FLAG, &tls, 0, 0, NULL, "the server has a certificate (--tls-cert)"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 0, 0, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    char url[64];
    snprintf(url, sizeof url, "http%s://127.0.0.1:%d/", tls ? "s" : "", (int)port);
    if (!listens((int)port)) {
        fprintf(stderr, "apus: no server on port %d; start one with `apus serve MODEL`\n", (int)port);
        return 1;
    }
    printf(open_in_browser(url) ? "opened %s\n" : "open %s in a browser\n", url);
    return 0;
}

void print_start(void) {
    LocalModels local;
    Error error = {0};
    printf("apus " APUS_VERSION ", a server for language models on this machine\n\n"
           "  apus serve MODEL      serve a model, with the web app at http://127.0.0.1:%d\n"
           "  apus app              open the web app\n"
           "  apus chat MODEL       a conversation in the terminal\n"
           "  apus pull ORG/NAME    bring a model from the Hugging Face Hub\n"
           "  apus --help           all commands\n\n",
        PORT_DEFAULT);
    printf(listens(PORT_DEFAULT) ? "A server listens on port %d.\n" : "No server listens on port %d.\n", PORT_DEFAULT);
    if (!local_list(&local, &error)) return;
    if (!local.count) printf("No models are here. A small one: apus serve mlx-community/Qwen3-0.6B-4bit\n");
    if (local.count) printf("Models here:\n");
    for (size_t i = 0; i < local.count && i < MODELS_SHOWN; i++)
        printf("  %-40s %6.1f GB\n", local.models[i].name, (double)local.models[i].bytes * 1e-9);
    if (local.count > MODELS_SHOWN) printf("  and %zu more (apus list)\n", local.count - MODELS_SHOWN);
    local_free(&local);
}
