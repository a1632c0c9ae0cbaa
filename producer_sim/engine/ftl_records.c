// SPDX-License-Identifier: Apache-2.0
/* The records of the simulated drive, field by field as in workloads/ftl.toml. */
#include <stdio.h>

#include "ftl.h"

static void emit(struct hmb_sim *sim, uint16_t opcode, uint8_t cpu, const void *payload,
		 uint32_t length)
{
	sim_stage(sim, sim->clock.now_ns, opcode, cpu, 0, length);
	memcpy(sim->next.payload, payload, length);
}

void ftl_emit_command(struct hmb_sim *sim, uint16_t opcode, uint16_t tag)
{
	const struct command *command = &sim->ftl->commands[tag];
	struct __attribute__((packed)) {
		uint64_t lba;
		uint16_t tag;
		uint16_t blocks;
	} payload = { command->lba, tag, command->blocks };

	emit(sim, opcode, CPU_HOST, &payload, sizeof(payload));
}

void ftl_emit_done(struct hmb_sim *sim, uint16_t opcode, uint16_t tag)
{
	const struct command *command = &sim->ftl->commands[tag];
	struct __attribute__((packed)) {
		uint64_t latency_ns;
		uint16_t tag;
		uint16_t status;
	} payload = { sim->clock.now_ns - command->start, tag, command->status };

	emit(sim, opcode, CPU_HOST, &payload, sizeof(payload));
}

void ftl_emit_lookup(struct hmb_sim *sim, uint16_t opcode, uint64_t lba, uint32_t where)
{
	struct __attribute__((packed)) {
		uint64_t lba;
		uint32_t where;
	} payload = { lba, where };

	emit(sim, opcode, CPU_FTL, &payload, sizeof(payload));
}

void ftl_emit_update(struct hmb_sim *sim, uint64_t lba, uint32_t old_ppa, uint32_t new_ppa)
{
	struct {
		uint64_t lba;
		uint32_t old_ppa;
		uint32_t new_ppa;
	} payload = { lba, old_ppa, new_ppa };

	emit(sim, L2P_UPDATE, CPU_FTL, &payload, sizeof(payload));
}

void ftl_emit_flash(struct hmb_sim *sim, uint16_t opcode, struct flash flash)
{
	emit(sim, opcode, CPU_NAND, &flash, sizeof(flash));
}

void ftl_emit_flash_done(struct hmb_sim *sim, uint16_t opcode, struct flash flash, uint64_t busy_ns,
			 uint16_t bits)
{
	struct {
		uint32_t busy_ns;
		uint16_t bits;
		uint8_t die;
		uint8_t plane;
	} payload = { (uint32_t)busy_ns, bits, flash.die, flash.plane };

	emit(sim, opcode, CPU_NAND, &payload, sizeof(payload));
}

/* value: bytes when it is submitted, nanoseconds when it is done. */
void ftl_emit_dma(struct hmb_sim *sim, uint16_t opcode, uint16_t tag, uint64_t value)
{
	struct {
		uint32_t value;
		uint16_t tag;
		uint16_t channel;
	} payload = { (uint32_t)value, tag, tag % 4 };

	emit(sim, opcode, CPU_HOST, &payload, sizeof(payload));
}

void ftl_emit_gc(struct hmb_sim *sim, uint16_t opcode, uint32_t pages)
{
	struct {
		uint32_t victim;
		uint16_t pages;
		uint16_t free_blocks;
	} payload = { sim->ftl->gc_victim, (uint16_t)pages, (uint16_t)sim->ftl->free_blocks };

	emit(sim, opcode, CPU_BACKGROUND, &payload, sizeof(payload));
}

void ftl_emit_counter(struct hmb_sim *sim, uint16_t opcode, uint8_t cpu, uint32_t value)
{
	emit(sim, opcode, cpu, &value, sizeof(value));
}

void ftl_emit_smart(struct hmb_sim *sim)
{
	struct {
		uint32_t duration_ns;
		uint32_t commands;
	} payload = { (uint32_t)ftl_between(sim, 8000, 30000), (uint32_t)sim->ftl->arrived };

	emit(sim, SMART_UPDATE, CPU_BACKGROUND, &payload, sizeof(payload));
}

/* A level, and text; what does not fit is clipped and flagged, as firmware does it. */
void ftl_emit_log(struct hmb_sim *sim)
{
	static const char *const forms[] = {
		"qd=%u free=%u temp=%u",
		"pressure: %u commands wait, %u blocks free, %u degrees",
	};
	struct {
		uint8_t level;
		char text[47];
	} payload = { 0 };
	uint64_t form = ftl_between(sim, 0, 1);
	int length = snprintf(payload.text, sizeof(payload.text), forms[form], sim->ftl->depth,
			      sim->ftl->free_blocks, sim->ftl->temperature);

	payload.level = (uint8_t)(1 + 2 * form);
	emit(sim, FW_LOG, CPU_BACKGROUND, &payload, sizeof(payload));
	if (length >= (int)sizeof(payload.text))
		sim->next.hdr.flags |= HMB_REC_FLAG_TRUNCATED;
}
