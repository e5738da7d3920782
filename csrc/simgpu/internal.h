/* What the files behind state.h share with each other and with nobody else. */
#ifndef SIMGPU_INTERNAL_H
#define SIMGPU_INTERNAL_H

#include "state.h"

#define SIM_CLAIMED 3u /* slot state between the claim and sim_slot_enter() */

#define SIM_SLOT_BYTE (INT64_C(1) << 40) /* offset of slot 0's lock byte, far behind the file's end */

/* Locks the byte of `slot` through this descriptor; false if another description has it. */
bool sim_byte_lock(int fd, uint32_t slot);
void sim_byte_unlock(int fd, uint32_t slot);

/* Takes the state's lock although `owner` (a slot whose byte the caller holds, so a dead one) may have died in it. */
void sim_lock_over(struct sim_view *view, uint32_t owner);

/* Fills in the slot just claimed, giving back what a dead predecessor left. */
void sim_slot_enter(struct sim_view *view);
/* Gives back all that the slot holds, moves its objects' charge on, frees the slot. The caller holds its byte. */
void sim_slot_clear(struct sim_view *view, uint32_t slot);

/* Makes used_bytes of all cards right again. Under the lock. */
void sim_recount(struct sim_state *state);

#endif
