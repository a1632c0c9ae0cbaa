// SPDX-License-Identifier: Apache-2.0
/* bincode v1 event lists (SPEC P6): fixed-width little-endian integers, no padding. */
#include <stdio.h>
#include <string.h>

#include "core.h"
#include "utf8.h"

#define FIXED_SIZE 20u /* core_id, start_cycle, duration */
#define LENGTH_SIZE 8u
#define TAG_SIZE 1u
#define TYPE_OTHER UINT32_MAX
#define API_CALL 6u
#define TYPE_TEXT_MOST 16u /* "EVENT_4294967295" */

static const char *const type_names[] = {
	"UNKNOWN",	  "MAC_COMPUTE",  "DMA_READ", "DMA_WRITE",
	"SYSTOLIC_STALL", "BARRIER_SYNC", "API_CALL",
};

/* The only candidate of each length but 8. */
static const uint8_t type_by_length[15] = {
	[7] = 1, [11] = 2, [8] = 3, [9] = 4, [14] = 5, [12] = 6
};

uint32_t hmb_event_type_other(void)
{
	return TYPE_OTHER;
}

static uint32_t event_type(const uint8_t *name, uint64_t length)
{
	uint32_t id;

	if (length >= sizeof(type_by_length) || !type_by_length[length])
		return TYPE_OTHER;
	id = type_by_length[length] - 1u;
	if (!memcmp(name, type_names[id], length))
		return id;
	return length == 8 && !memcmp(name, type_names[API_CALL], 8) ? API_CALL : TYPE_OTHER;
}

static int is_utf8(const uint8_t *text, uint64_t length)
{
	uint64_t i = 0;

	while (i < length) {
		uint64_t size = hmb_utf8_length(text + i, length - i);

		if (!size)
			return 0;
		i += size;
	}
	return 1;
}

/* What is still to be read of the payload. */
struct cursor {
	const uint8_t *payload;
	uint64_t position;
	uint64_t end;
	struct hmb_bincode *bincode;
};

static int fault(struct cursor *at, uint32_t kind, uint64_t offset, uint64_t value)
{
	at->bincode->fault = kind;
	at->bincode->fault_offset = offset;
	at->bincode->fault_value = value;
	return -EBADMSG;
}

static int need(struct cursor *at, uint64_t size)
{
	return at->end - at->position < size ? fault(at, HMB_FAULT_TORN, at->position, size) : 0;
}

static int read_string(struct cursor *at, uint32_t length_fault, uint64_t *offset, uint64_t *length)
{
	if (need(at, LENGTH_SIZE))
		return -EBADMSG;
	memcpy(length, at->payload + at->position, LENGTH_SIZE);
	if (*length > at->end - at->position - LENGTH_SIZE)
		return fault(at, length_fault, at->position, *length);
	*offset = at->position + LENGTH_SIZE;
	at->position = *offset + *length;
	return 0;
}

static int read_type(struct cursor *at, struct hmb_event_strings *strings, uint32_t *type)
{
	if (read_string(at, HMB_FAULT_TYPE_LENGTH, &strings->type_offset, &strings->type_length))
		return -EBADMSG;
	*type = event_type(at->payload + strings->type_offset, strings->type_length);
	strings->known_type = *type != TYPE_OTHER;
	if (*type == TYPE_OTHER &&
	    !is_utf8(at->payload + strings->type_offset, strings->type_length))
		return fault(at, HMB_FAULT_TYPE_UTF8, strings->type_offset, strings->type_length);
	return 0;
}

static int read_api(struct cursor *at, struct hmb_event_strings *strings)
{
	uint8_t tag;

	if (need(at, TAG_SIZE))
		return -EBADMSG;
	tag = at->payload[at->position];
	if (tag > 1)
		return fault(at, HMB_FAULT_TAG, at->position, tag);
	at->position += TAG_SIZE;
	strings->has_api = tag;
	if (!tag)
		return 0;
	if (read_string(at, HMB_FAULT_API_LENGTH, &strings->api_offset, &strings->api_length))
		return -EBADMSG;
	if (!is_utf8(at->payload + strings->api_offset, strings->api_length))
		return fault(at, HMB_FAULT_API_UTF8, strings->api_offset, strings->api_length);
	return 0;
}

static int read_event(struct cursor *at, struct hmb_flat_event *event,
		      struct hmb_event_strings *strings)
{
	uint64_t start = at->position;
	uint32_t type;

	if (need(at, FIXED_SIZE))
		return -EBADMSG;
	at->position += FIXED_SIZE;
	if (read_type(at, strings, &type) || read_api(at, strings))
		return -EBADMSG;
	memcpy(event->core_id, at->payload + start, FIXED_SIZE);
	memcpy(event->event_type_id, &type, sizeof(type));
	return 0;
}

int64_t hmb_bincode_read(struct hmb_bincode *bincode, const uint8_t *payload, uint64_t n,
			 struct hmb_flat_event *events, uint64_t cap,
			 struct hmb_event_strings *strings, uint64_t *done)
{
	struct cursor at = { payload, bincode->position, n, bincode };

	bincode->strings_len = 0;
	for (*done = 0; *done < cap && bincode->left; ++*done) {
		struct hmb_event_strings found = { .row = (uint32_t)*done };

		if (read_event(&at, &events[*done], &found))
			return -EBADMSG;
		if (strings && (found.has_api || !found.known_type))
			strings[bincode->strings_len++] = found;
		bincode->position = at.position;
		bincode->left--;
	}
	bincode->last = !bincode->left;
	return (int64_t)*done;
}

uint64_t hmb_bincode_most(void)
{
	return FIXED_SIZE + LENGTH_SIZE + TYPE_TEXT_MOST + TAG_SIZE;
}

/* An id that has no name keeps its number in the text, so that the way back finds it. */
static uint64_t type_text(uint32_t id, uint8_t *to)
{
	char text[TYPE_TEXT_MOST + 1];
	uint64_t length;

	if (id <= API_CALL) {
		length = strlen(type_names[id]);
		memcpy(to, type_names[id], length);
		return length;
	}
	length = (uint64_t)snprintf(text, sizeof(text), "EVENT_%u", id);
	memcpy(to, text, length);
	return length;
}

uint64_t hmb_bincode_write(const struct hmb_flat_event *events, uint64_t n, uint8_t *out)
{
	uint8_t *to = out;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t length;
		uint32_t type;

		memcpy(&type, events[i].event_type_id, sizeof(type));
		length = type_text(type, to + FIXED_SIZE + LENGTH_SIZE);
		memcpy(to, events[i].core_id, FIXED_SIZE);
		memcpy(to + FIXED_SIZE, &length, LENGTH_SIZE);
		to += FIXED_SIZE + LENGTH_SIZE + length;
		*to++ = 0;
	}
	return (uint64_t)(to - out);
}
