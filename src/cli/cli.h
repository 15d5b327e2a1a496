/* cli/: the commands, thin: arguments in, calls of the layers below, text out.
 *
 * The command line: one file per command, each with its own help. Exit codes: 0, 1 a failure, 2 usage. */
#pragma once
int cli_main(int argc, char **argv);
