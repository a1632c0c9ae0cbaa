/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated drive: its state, and the records that tell of it. */
#ifndef HMB_SIM_FTL_H
#define HMB_SIM_FTL_H

#include "sim_core.h"

#define TAGS 64u
#define DIES 32u

enum opcode {
	HOST_READ = 0x1001,
	HOST_READ_DONE,
	HOST_WRITE,
	HOST_WRITE_DONE,
	HOST_TRIM,
	L2P_HIT = 0x1010,
	L2P_MISS,
	L2P_UPDATE,
	NAND_READ = 0x1020,
	NAND_READ_DONE,
	NAND_PROGRAM,
	NAND_PROGRAM_DONE,
	NAND_ERASE,
	NAND_ERASE_DONE,
	DMA_OUT = 0x1030,
	DMA_OUT_DONE,
	DMA_IN,
	DMA_IN_DONE,
	GC_BEGIN = 0x1040,
	GC_END,
	QUEUE_DEPTH = 0x1050,
	FREE_BLOCKS,
	TEMPERATURE,
	ECC_CORRECTED = 0x1060,
	READ_RETRY,
	UNCORRECTABLE,
	FW_LOG = 0x1070,
	SMART_UPDATE,
};

/* Steps with no opcode of their own; the others are named by the opcode they emit. */
enum step { ARRIVE = 1, LOOKUP, MAPPED };

enum cpu { CPU_HOST, CPU_FTL, CPU_NAND, CPU_BACKGROUND };

enum owner { OWNER_HOST, OWNER_MAP, OWNER_FLUSH, OWNER_GC };

struct command {
	uint64_t lba;
	uint64_t start;
	uint16_t blocks;
	uint16_t status;
	uint8_t busy;
	uint8_t is_write;
};

/* One flash operation, small enough to travel in sim_planned.key. */
struct flash {
	uint32_t block;
	uint16_t page;
	uint8_t die;
	uint8_t plane;
};

struct sim_ftl {
	struct command commands[TAGS];
	uint64_t die_free_at[DIES];
	uint64_t arrival_ns;
	uint64_t arrived;
	uint32_t depth;
	uint32_t dirty_units; /* in the write buffer */
	uint32_t next_die;
	uint32_t open_block;
	uint32_t open_page;
	uint32_t free_blocks;
	uint32_t gc_victim;
	uint32_t gc_left; /* moves not started */
	uint32_t gc_moving;
	uint32_t gc_moved;
	uint32_t gc_running;
	uint32_t temperature;
};

_Static_assert(sizeof(struct flash) == sizeof(uint64_t), "a flash operation fits a key");

static inline uint64_t ftl_between(struct hmb_sim *sim, uint64_t min, uint64_t max)
{
	return sim_between(&sim->random, min, max);
}

/* ---- ftl_records.c: fill sim->next, as workloads/ftl.toml describes it ---- */

void ftl_emit_command(struct hmb_sim *sim, uint16_t opcode, uint16_t tag);
void ftl_emit_done(struct hmb_sim *sim, uint16_t opcode, uint16_t tag);
void ftl_emit_lookup(struct hmb_sim *sim, uint16_t opcode, uint64_t lba, uint32_t where);
void ftl_emit_update(struct hmb_sim *sim, uint64_t lba, uint32_t old_ppa, uint32_t new_ppa);
void ftl_emit_flash(struct hmb_sim *sim, uint16_t opcode, struct flash flash);
void ftl_emit_flash_done(struct hmb_sim *sim, uint16_t opcode, struct flash flash, uint64_t busy_ns,
			 uint16_t bits);
void ftl_emit_dma(struct hmb_sim *sim, uint16_t opcode, uint16_t tag, uint64_t value);
void ftl_emit_gc(struct hmb_sim *sim, uint16_t opcode, uint32_t pages);
void ftl_emit_counter(struct hmb_sim *sim, uint16_t opcode, uint8_t cpu, uint32_t value);
void ftl_emit_smart(struct hmb_sim *sim);
void ftl_emit_log(struct hmb_sim *sim);

#endif
