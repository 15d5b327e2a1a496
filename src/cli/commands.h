/* The commands. Each gets the arguments after its name and returns the exit code. */
#pragma once
#include "cli/options.h"

int command_app(int argc, char **argv);
int command_serve(int argc, char **argv);
int command_serve_swiftlm(int argc, char **argv); /* without a command word, as SwiftLM: a model must be named */
int command_run(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_convert(int argc, char **argv);
int command_pull(int argc, char **argv);
int command_search(int argc, char **argv);
int command_list(int argc, char **argv);
int command_rm(int argc, char **argv);
int command_info(int argc, char **argv);
int command_launch(int argc, char **argv);
int command_devices(int argc, char **argv);
int command_ps(int argc, char **argv);
int command_stop(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_debug(int argc, char **argv);

void print_start(void); /* the screen of `apus` without arguments */

typedef struct CommandEntry {
    const char *name, *summary; /* NULL ends a table */
    int (*run)(int argc, char **argv);
} CommandEntry;

/* Commands that say what the others are. */
int command_man(const CommandEntry *commands, int argc, char **argv);
int command_completion(const CommandEntry *commands, int argc, char **argv);
