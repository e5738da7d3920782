/* The subcommands of `simgpu`. Each gets its own name as argv[0] and returns the exit code:
 * 0, 1 when it couldn't be done, 2 for a wrong command line. */
#ifndef SIMGPU_COMMANDS_H
#define SIMGPU_COMMANDS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "state.h"

int cmd_create(int argc, char **argv);
int cmd_truth(int argc, char **argv);
int cmd_fault(int argc, char **argv);
int cmd_neighbour(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_library(int argc, char **argv);

/* ---- shared by them (cmd_common.c) ---- */

/* Joins the state as a role; says on stderr why not. */
bool cmd_join(struct sim_view *view, const char *path, enum sim_role role);
/* "3GiB", "4147m", plain bytes: binary units. False for anything else. */
bool cmd_size(const char *text, uint64_t *bytes);
bool cmd_number(const char *text, double least, double most, double *number);
/* Blocks SIGTERM, SIGINT and SIGHUP, which end these commands, for sigtimedwait. */
void cmd_block_signals(sigset_t *signals);
/* Sleeps; true when a signal came. */
bool cmd_sleep(const sigset_t *signals, double seconds);

#endif
