// SPDX-License-Identifier: Apache-2.0
/*
 * A flash translation layer, event by event: host commands look up their
 * mapping, wait for dies and DMA; writes fill blocks, and garbage collection
 * frees them.  Times are a NAND data sheet's, in virtual nanoseconds.
 */
#include "ftl.h"

#define BLOCKS 2048u /* a die */
#define PAGES 256u /* a block */
#define PAGE_UNITS 4u /* 4 KiB units a page */
#define LOW_FREE_BLOCKS 48u
#define START_FREE_BLOCKS 50u /* soon in need of garbage collection, as a used drive is */
#define GC_LANES 4u
#define CAPACITY_UNITS (1u << 28) /* 1 TiB */
#define HOT_UNITS (1u << 20)
#define NS_A_COMMAND 7400000000ull /* 7.4 records a command: to meet --rate in virtual time */
#define FASTEST_ARRIVAL 4000u /* ns between commands where no rate is asked for */
#define STATUS_UNCORRECTABLE 0x281u /* NVMe: media error, unrecovered read error */

static uint64_t pack(struct flash flash)
{
	uint64_t key;

	memcpy(&key, &flash, sizeof(key));
	return key;
}

static struct flash unpack(uint64_t key)
{
	struct flash flash;

	memcpy(&flash, &key, sizeof(flash));
	return flash;
}

static int one_in(struct hmb_sim *sim, uint64_t n)
{
	return ftl_between(sim, 1, n) == 1;
}

static int plan(struct hmb_sim *sim, uint64_t after, uint32_t what, uint64_t key, uint32_t extra)
{
	uint64_t now = sim->clock.now_ns;

	return sim_plan_add(&sim->plan, (struct sim_planned){ .time = now + after,
							      .since = now,
							      .key = key,
							      .what = what,
							      .extra = extra });
}

/* ---- flash ---- */

static uint64_t die_time(struct hmb_sim *sim, uint32_t opcode)
{
	switch (opcode) {
	case NAND_READ:
		return one_in(sim, 300) ? ftl_between(sim, 140000, 420000)
					: ftl_between(sim, 45000, 75000);
	case NAND_PROGRAM:
		return ftl_between(sim, 550000, 750000);
	default:
		return ftl_between(sim, 3000000, 5000000);
	}
}

/* A die does one thing at a time: queue behind what it was given before. */
static int plan_flash(struct hmb_sim *sim, uint32_t opcode, struct flash flash, uint32_t owner)
{
	uint64_t *free_at = &sim->ftl->die_free_at[flash.die];
	uint64_t now = sim->clock.now_ns;
	uint64_t start = now + ftl_between(sim, 300, 700);
	uint64_t busy = die_time(sim, opcode);
	int err;

	if (start < *free_at)
		start = *free_at;
	*free_at = start + busy;
	err = plan(sim, start - now, opcode, pack(flash), owner);
	if (err)
		return err;
	return sim_plan_add(&sim->plan, (struct sim_planned){ .time = start + busy,
							      .since = start,
							      .key = pack(flash),
							      .what = opcode + 1,
							      .extra = owner });
}

static struct flash place_of(uint64_t unit)
{
	uint64_t mixed = unit * 0x9e3779b97f4a7c15u;

	return (struct flash){ .block = (uint32_t)(mixed >> 40) % BLOCKS,
			       .page = (uint16_t)((mixed >> 20) % PAGES),
			       .die = (uint8_t)((mixed >> 12) % DIES),
			       .plane = (uint8_t)((mixed >> 8) % 4) };
}

static uint32_t ppa_of(struct flash flash)
{
	return (uint32_t)flash.die << 27 | (flash.block & 0x7ffu) << 16 | flash.page;
}

static uint32_t owner_of(enum owner owner, uint16_t tag)
{
	return (uint32_t)owner << 16 | tag;
}

/* Programs go round the dies; a full stripe of blocks costs a free one. */
static struct flash next_page(struct hmb_sim *sim)
{
	struct sim_ftl *ftl = sim->ftl;
	struct flash flash = { .block = ftl->open_block,
			       .page = (uint16_t)ftl->open_page,
			       .die = (uint8_t)ftl->next_die,
			       .plane = (uint8_t)(ftl->next_die % 4) };

	ftl->next_die = (ftl->next_die + 1) % DIES;
	if (ftl->next_die)
		return flash;
	ftl->open_page = (ftl->open_page + 1) % PAGES;
	if (ftl->open_page % 8)
		return flash;
	ftl->open_block = (ftl->open_block + 1) % BLOCKS;
	ftl->free_blocks -= ftl->free_blocks > 0;
	return flash;
}

static int start_gc(struct hmb_sim *sim)
{
	struct sim_ftl *ftl = sim->ftl;

	if (ftl->gc_running || ftl->free_blocks > LOW_FREE_BLOCKS)
		return 0;
	ftl->gc_running = 1;
	return plan(sim, 1000, GC_BEGIN, 0, 0);
}

static int flush_buffer(struct hmb_sim *sim)
{
	int err = 0;

	while (!err && sim->ftl->dirty_units >= PAGE_UNITS) {
		sim->ftl->dirty_units -= PAGE_UNITS;
		err = plan_flash(sim, NAND_PROGRAM, next_page(sim), owner_of(OWNER_FLUSH, 0));
	}
	return err ? err : start_gc(sim);
}

static int move_page(struct hmb_sim *sim)
{
	struct flash flash = place_of(sim->ftl->gc_victim * 4096ull + sim->ftl->gc_left);

	sim->ftl->gc_left--;
	sim->ftl->gc_moving++;
	flash.block = sim->ftl->gc_victim;
	return plan_flash(sim, NAND_READ, flash, owner_of(OWNER_GC, 0));
}

static int begin_gc(struct hmb_sim *sim)
{
	struct sim_ftl *ftl = sim->ftl;
	int err = 0;

	ftl->gc_victim = (uint32_t)ftl_between(sim, 0, BLOCKS - 1);
	ftl->gc_left = (uint32_t)ftl_between(sim, 8, 32);
	ftl->gc_moved = 0;
	ftl_emit_gc(sim, GC_BEGIN, ftl->gc_left);
	for (uint32_t lane = 0; lane < GC_LANES && !err; lane++)
		err = move_page(sim);
	return err;
}

/* A move has ended; the last one is followed by the erase of the victim. */
static int moved_page(struct hmb_sim *sim)
{
	struct sim_ftl *ftl = sim->ftl;
	struct flash victim = { .block = ftl->gc_victim, .die = (uint8_t)(ftl->gc_victim % DIES) };

	ftl->gc_moving--;
	ftl->gc_moved++;
	if (ftl->gc_left)
		return move_page(sim);
	if (ftl->gc_moving)
		return 0;
	return plan_flash(sim, NAND_ERASE, victim, owner_of(OWNER_GC, 0));
}

static int end_gc(struct hmb_sim *sim)
{
	struct sim_ftl *ftl = sim->ftl;

	ftl->free_blocks += 2;
	ftl->gc_running = 0;
	ftl_emit_gc(sim, GC_END, ftl->gc_moved);
	return plan(sim, 200, FREE_BLOCKS, 0, 0);
}

/* ---- reads and writes ---- */

static uint64_t draw_lba(struct hmb_sim *sim)
{
	return ftl_between(sim, 0, (one_in(sim, 3) ? CAPACITY_UNITS : HOT_UNITS) - 1);
}

static uint64_t draw_arrival(struct hmb_sim *sim)
{
	uint64_t mean = sim->ftl->arrival_ns;

	return ftl_between(sim, mean / 4, mean + mean * 3 / 4);
}

static int free_tag(const struct sim_ftl *ftl)
{
	for (uint32_t i = 0; i < TAGS; i++) {
		uint32_t tag = (uint32_t)(ftl->arrived + i) % TAGS;

		if (!ftl->commands[tag].busy)
			return (int)tag;
	}
	return -1;
}

/* Now and then something beside the host's commands. */
static int plan_housekeeping(struct hmb_sim *sim)
{
	uint64_t n = sim->ftl->arrived;

	if (n % 16 == 0)
		return plan(sim, 100, QUEUE_DEPTH, 0, 0);
	if (n % 1001 == 0)
		return plan(sim, 150, TEMPERATURE, 0, 0);
	if (n % 1999 == 0)
		return plan(sim, 150, FW_LOG, 0, 0);
	if (n % 499 == 0)
		return plan(sim, 150, SMART_UPDATE, 0, 0);
	return n % 211 == 0 ? plan(sim, 250, HOST_TRIM, draw_lba(sim), 0) : 0;
}

static int begin_command(struct hmb_sim *sim, uint16_t tag)
{
	struct command *command = &sim->ftl->commands[tag];
	int is_write = ftl_between(sim, 0, 99) < 30;

	*command = (struct command){ .lba = draw_lba(sim),
				     .start = sim->clock.now_ns,
				     .blocks = (uint16_t)(1u << ftl_between(sim, 0, 3)),
				     .busy = 1,
				     .is_write = (uint8_t)is_write };
	sim->ftl->arrived++;
	sim->ftl->depth++;
	ftl_emit_command(sim, is_write ? HOST_WRITE : HOST_READ, tag);
	return plan(sim, ftl_between(sim, 400, 1200), is_write ? DMA_IN : LOOKUP, 0, tag) ||
	       plan_housekeeping(sim);
}

/* 1: a record was made. A full queue lets the host wait. */
static int arrive(struct hmb_sim *sim)
{
	int tag = free_tag(sim->ftl);

	if (plan(sim, draw_arrival(sim), ARRIVE, 0, 0))
		return -ENOMEM;
	if (tag < 0)
		return 0;
	return begin_command(sim, (uint16_t)tag) ? -ENOMEM : 1;
}

static int look_up(struct hmb_sim *sim, uint16_t tag)
{
	uint64_t lba = sim->ftl->commands[tag].lba;
	struct flash flash = place_of(lba);

	if (lba < HOT_UNITS ? !one_in(sim, 50) : one_in(sim, 3)) {
		ftl_emit_lookup(sim, L2P_HIT, lba, ppa_of(flash));
		return plan_flash(sim, NAND_READ, flash, owner_of(OWNER_HOST, tag));
	}
	ftl_emit_lookup(sim, L2P_MISS, lba, (uint32_t)(lba / 1024));
	return plan_flash(sim, NAND_READ, place_of(lba / 1024 + (1ull << 40)),
			  owner_of(OWNER_MAP, tag));
}

static int plan_errors(struct hmb_sim *sim, const struct sim_planned *read, uint64_t busy)
{
	uint16_t tag = (uint16_t)read->extra;

	if (busy < 140000)
		return one_in(sim, 400) ? plan(sim, 200, ECC_CORRECTED, read->key, 0) : 0;
	if (read->extra >> 16 == OWNER_HOST && one_in(sim, 200)) {
		sim->ftl->commands[tag].status = STATUS_UNCORRECTABLE;
		return plan(sim, 200, UNCORRECTABLE, read->key, 0);
	}
	return plan(sim, 200, READ_RETRY, read->key, 0);
}

static int after_read(struct hmb_sim *sim, const struct sim_planned *read)
{
	uint16_t tag = (uint16_t)read->extra;

	switch (read->extra >> 16) {
	case OWNER_MAP:
		return plan_flash(sim, NAND_READ, place_of(sim->ftl->commands[tag].lba),
				  owner_of(OWNER_HOST, tag));
	case OWNER_GC:
		return plan_flash(sim, NAND_PROGRAM, next_page(sim), owner_of(OWNER_GC, 0));
	default:
		return plan(sim, ftl_between(sim, 300, 900), DMA_OUT, 0, tag);
	}
}

static int read_done(struct hmb_sim *sim, const struct sim_planned *read)
{
	uint64_t busy = sim->clock.now_ns - read->since;
	uint64_t bits = busy < 140000 ? ftl_between(sim, 0, 12) : ftl_between(sim, 24, 60);

	ftl_emit_flash_done(sim, NAND_READ_DONE, unpack(read->key), busy, (uint16_t)bits);
	return plan_errors(sim, read, busy) || after_read(sim, read);
}

static int program_done(struct hmb_sim *sim, const struct sim_planned *program)
{
	ftl_emit_flash_done(sim, NAND_PROGRAM_DONE, unpack(program->key),
			    sim->clock.now_ns - program->since, 0);
	return program->extra >> 16 == OWNER_GC ? moved_page(sim) : 0;
}

static int erase_done(struct hmb_sim *sim, const struct sim_planned *erase)
{
	ftl_emit_flash_done(sim, NAND_ERASE_DONE, unpack(erase->key),
			    sim->clock.now_ns - erase->since, 0);
	return plan(sim, 500, GC_END, 0, 0);
}

static int begin_dma(struct hmb_sim *sim, uint16_t opcode, uint16_t tag)
{
	uint64_t bytes = 4096ull * sim->ftl->commands[tag].blocks;

	ftl_emit_dma(sim, opcode, tag, bytes);
	return plan(sim, 1000 + bytes / 3 + ftl_between(sim, 0, 400), opcode + 1u, 0, tag);
}

static int dma_done(struct hmb_sim *sim, uint16_t opcode, const struct sim_planned *dma)
{
	ftl_emit_dma(sim, opcode, (uint16_t)dma->extra, sim->clock.now_ns - dma->since);
	return plan(sim, 400, opcode == DMA_IN_DONE ? MAPPED : HOST_READ_DONE, 0, dma->extra);
}

static int map_write(struct hmb_sim *sim, uint16_t tag)
{
	struct command *command = &sim->ftl->commands[tag];
	struct flash old = place_of(command->lba);
	struct flash new = { .block = sim->ftl->open_block,
			     .page = (uint16_t)sim->ftl->open_page,
			     .die = (uint8_t)sim->ftl->next_die };

	ftl_emit_update(sim, command->lba, ppa_of(old), ppa_of(new));
	sim->ftl->dirty_units += command->blocks;
	return plan(sim, 300, HOST_WRITE_DONE, 0, tag) || flush_buffer(sim);
}

static int end_command(struct hmb_sim *sim, uint16_t opcode, uint16_t tag)
{
	ftl_emit_done(sim, opcode, tag);
	sim->ftl->commands[tag].busy = 0;
	sim->ftl->depth--;
	return 0;
}

static int measure(struct hmb_sim *sim, uint16_t opcode)
{
	struct sim_ftl *ftl = sim->ftl;

	if (opcode == TEMPERATURE)
		ftl->temperature += (uint32_t)ftl_between(sim, 0, 2) - (ftl->temperature > 45);
	ftl_emit_counter(sim, opcode, opcode == QUEUE_DEPTH ? CPU_HOST : CPU_BACKGROUND,
			 opcode == QUEUE_DEPTH	 ? ftl->depth
			 : opcode == FREE_BLOCKS ? ftl->free_blocks
						 : ftl->temperature);
	return 0;
}

static int odd_record(struct hmb_sim *sim, const struct sim_planned *planned)
{
	switch (planned->what) {
	case HOST_TRIM:
		ftl_emit_lookup(sim, HOST_TRIM, planned->key, (uint32_t)ftl_between(sim, 8, 1024));
		break;
	case FW_LOG:
		ftl_emit_log(sim);
		break;
	case SMART_UPDATE:
		ftl_emit_smart(sim);
		break;
	default: /* ECC_CORRECTED, READ_RETRY, UNCORRECTABLE: where it happened */
		ftl_emit_flash(sim, (uint16_t)planned->what, unpack(planned->key));
	}
	return 0;
}

/* What stands behind one planned thing; every step makes one record. */
static int perform(struct hmb_sim *sim, const struct sim_planned *planned)
{
	uint16_t opcode = (uint16_t)planned->what;
	uint16_t tag = (uint16_t)planned->extra;

	switch (planned->what) {
	case LOOKUP:
		return look_up(sim, tag);
	case MAPPED:
		return map_write(sim, tag);
	case NAND_READ:
	case NAND_PROGRAM:
	case NAND_ERASE:
		ftl_emit_flash(sim, opcode, unpack(planned->key));
		return 0;
	case NAND_READ_DONE:
		return read_done(sim, planned);
	case NAND_PROGRAM_DONE:
		return program_done(sim, planned);
	case NAND_ERASE_DONE:
		return erase_done(sim, planned);
	case DMA_OUT:
	case DMA_IN:
		return begin_dma(sim, opcode, tag);
	case DMA_OUT_DONE:
	case DMA_IN_DONE:
		return dma_done(sim, opcode, planned);
	case HOST_READ_DONE:
	case HOST_WRITE_DONE:
		return end_command(sim, opcode, tag);
	case GC_BEGIN:
		return begin_gc(sim);
	case GC_END:
		return end_gc(sim);
	case QUEUE_DEPTH:
	case FREE_BLOCKS:
	case TEMPERATURE:
		return measure(sim, opcode);
	default:
		return odd_record(sim, planned);
	}
}

int sim_ftl_next(struct hmb_sim *sim)
{
	struct sim_planned planned;
	int made;

	for (;;) {
		planned = sim_plan_take(&sim->plan);
		sim->clock.now_ns = planned.time;
		if (planned.what != ARRIVE)
			return perform(sim, &planned) ? -ENOMEM : 0;
		made = arrive(sim);
		if (made)
			return made < 0 ? made : 0;
	}
}

int sim_ftl_begin(struct hmb_sim *sim)
{
	uint64_t rate = sim->config.rate;

	sim->ftl = calloc(1, sizeof(*sim->ftl));
	if (!sim->ftl)
		return -ENOMEM;
	sim->ftl->arrival_ns = rate ? NS_A_COMMAND / rate : FASTEST_ARRIVAL;
	if (sim->ftl->arrival_ns < 4)
		sim->ftl->arrival_ns = 4;
	sim->ftl->free_blocks = START_FREE_BLOCKS;
	sim->ftl->temperature = 42;
	return plan(sim, 0, ARRIVE, 0, 0);
}

void sim_ftl_end(struct hmb_sim *sim)
{
	free(sim->ftl);
}
