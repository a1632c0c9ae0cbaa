// SPDX-License-Identifier: Apache-2.0
/*
 * Lines of text from arbitrary payloads: nothing is read beyond a record or
 * written beyond the output, and the size of the output buffer changes nothing.
 */
#include "check.h"

enum { RECORDS = 200, SIZE = 96, LINE = 1 << 13 };

static uint64_t random_state = 1;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static const char MISSING[] = "?";

static struct hmb_cell field(uint32_t put, uint32_t at, uint32_t width)
{
	return (struct hmb_cell){ .put = put,
				  .at = HMB_RECORD_HDR_SIZE + at,
				  .width = width,
				  .needs = at + width,
				  .base = 10,
				  .precision = -1,
				  .style = 'g',
				  .text = MISSING,
				  .text_length = 1 };
}

/* Every kind of cell, every width, base and escape. */
static uint32_t all_cells(struct hmb_cell *cells)
{
	static const uint32_t bases[] = { 2, 8, 10, 16 };
	static const struct hmb_label labels[] = { { .value = 0, .text = "zero", .length = 4 } };
	uint32_t n = 0;

	for (uint32_t i = 0; i < 16; i++) {
		cells[n] = field(i & 4 ? HMB_PUT_UINT : HMB_PUT_INT, i, 1u << (i & 3));
		cells[n].base = bases[i >> 2];
		cells[n].flags = i;
		cells[n].min_width = i * 4;
		cells[n].labels = labels;
		cells[n++].label_count = i & 1;
	}
	for (uint32_t i = 0; i < 12; i++) {
		cells[n] = field(HMB_PUT_FLOAT, i, i & 1 ? 4 : 8);
		cells[n].precision = (int32_t)i * 20 - 20;
		cells[n].flags = i & 2 ? HMB_CELL_JSON_FLOAT : 0;
		cells[n++].style = "gfe"[i % 3];
	}
	for (uint32_t i = 0; i < 6; i++) {
		cells[n] = field(i & 1 ? HMB_PUT_CHARS : HMB_PUT_HEX, i, 5 + i);
		cells[n++].escape = i % 3;
	}
	cells[n++] = field(HMB_PUT_SECONDS, 0, 0);
	cells[n++] = field(HMB_PUT_ISO, 0, 0);
	cells[n++] = field(HMB_PUT_NS, 0, 0);
	cells[n++] = field(HMB_PUT_OFFSET, 0, 0);
	cells[n++] = field(HMB_PUT_ROW_TEXT, 0, 0);
	cells[n++] = field(HMB_PUT_HEX, 0, 0);
	cells[n] = field(HMB_PUT_TEXT, 0, 0);
	cells[n].text = "\n";
	cells[n++].text_length = 1;
	return n;
}

static uint64_t make_records(uint8_t *data, uint64_t *offsets)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < RECORDS; i++) {
		uint16_t length = (uint16_t)(next_random() % (SIZE - HMB_RECORD_HDR_SIZE - 7));
		struct hmb_record_hdr hdr = { .magic = HMB_RECORD_MAGIC,
					      .seq = i,
					      .payload_len = length };

		offsets[i] = at;
		memcpy(data + at, &hdr, sizeof(hdr));
		for (uint32_t byte = 0; byte < length; byte++)
			data[at + HMB_RECORD_HDR_SIZE + byte] =
				(uint8_t)(i % 5 ? next_random() : 0xff * (next_random() & 1));
		at += HMB_RECORD_HDR_SIZE + hmb_align8(length);
	}
	return at;
}

/* Everything through a buffer of `cap` bytes, which grows where a line does not fit. */
static uint64_t render_all(struct hmb_render job, uint64_t cap, char *text)
{
	uint64_t used = 0;

	job.next = 0;
	while (job.next < job.n) {
		char *out = malloc(cap);
		int result;

		job.out = out;
		job.out_cap = cap;
		result = hmb_render(&job);
		CHECK(result == 0 || result == -ENOSPC);
		CHECK(job.out_len <= cap);
		memcpy(text + used, out, job.out_len);
		used += job.out_len;
		if (result)
			cap = 2 * cap;
		free(out);
	}
	return used;
}

int main(void)
{
	static uint16_t program_of[1 << 16];
	static uint64_t offsets[RECORDS], row_begin[RECORDS + 1];
	static int64_t times[RECORDS];
	static struct hmb_cell cells[64];
	struct hmb_program program = { .cells = cells, .count = all_cells(cells) };
	uint8_t *scratch = calloc(RECORDS, SIZE);
	uint64_t size = make_records(scratch, offsets);
	uint8_t *data = malloc(size); /* exact: a byte beyond the last record is an error */
	char *first = malloc((uint64_t)RECORDS * LINE), *other = malloc((uint64_t)RECORDS * LINE);
	struct hmb_render job = { .data = data,
				  .offsets = offsets,
				  .n = RECORDS,
				  .times = times,
				  .program_of = program_of,
				  .programs = &program,
				  .row_text = "",
				  .row_begin = row_begin };
	uint64_t length;

	CHECK(program.count <= sizeof(cells) / sizeof(*cells));
	memcpy(data, scratch, size);
	for (uint32_t i = 0; i < RECORDS; i++)
		times[i] = (int64_t)(next_random() >> (i % 3)) * (i % 2 ? -1 : 1);
	length = render_all(job, (uint64_t)RECORDS * LINE, first);
	for (uint64_t cap = 1; cap < 3 * LINE; cap += 1 + cap / 3) {
		CHECK_EQUAL(render_all(job, cap, other), length);
		CHECK(memcmp(first, other, length) == 0);
	}
	job.trim = 1;
	CHECK(render_all(job, LINE, other) <= length);
	free(first);
	free(other);
	free(data);
	free(scratch);
	return 0;
}
