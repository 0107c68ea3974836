/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the simulator that sim.h declares. Times are whole picoseconds (ps), so that sums do
 * not depend on the order of the additions.
 *
 * A chunk consists of TLPs (PCIe packets). It occupies a link for the time that the link needs to
 * send all its TLPs. A switch forwards each TLP as soon as the TLP has arrived. So a chunk starts
 * on the next link before its last byte has left the previous link.
 *
 * If the next link is faster, the simulator delays the chunk's start there until the link can send
 * all its TLPs without a pause. Otherwise the chunk would occupy the fast link for as long as the
 * slow one. This delay does not hold up the chunk's first TLP. On a later, slower link, the chunk
 * starts when its first TLP arrives. So unit.ahead_ps has the time by which this TLP is ahead of
 * the chunk.
 *
 * The event of the chunk's arrival at that slower link may come later than the TLP. If the link has
 * been idle since the TLP arrived, the simulator counts the chunk's service from the TLP's arrival.
 */
#include "sim.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define NONE UINT16_MAX
#define LINK_EVENT 0x80000000u
#define EVENTS (PST_SIM_UNITS + PST_SIM_LINKS)

/* A unit: bytes that a link sends without interruption. It is a chunk of a stream, or in the exact
 * mode one TLP (PCIe packet). */
struct unit {
	/* born_ps: time at which the stream sent the unit. ahead_ps: by how much the unit's first
	 * TLP arrived at the current link before the unit itself. tail_ps: time at which the unit's
	 * last byte arrives there. */
	uint64_t born_ps, ahead_ps, tail_ps;
	/* next: index in pst_sim.units of the unit behind this one in a link's queue; NONE: the
	 * last */
	uint16_t stream, next;
	uint8_t hop;
	bool first; /* whether this is the first unit of its chunk */
};

struct event {
	uint64_t time_ps, order;
	/* Without the bit LINK_EVENT: index of the unit that arrives at a link or at the end of its
	 * path. With this bit: index of the link that has sent a unit and becomes free. */
	uint32_t what;
};

/* The units of one stream that wait for one link: indexes of the first and the last of them. */
struct queue {
	uint16_t head, tail;
};

/* The state of a link during a simulation. */
struct server {
	struct queue queues[PST_SIM_STREAMS];
	/* For the arbiter wfq (weighted fair queueing): for each stream, the virtual time at which
	 * the link would finish the stream's first waiting unit. The earliest one is next. */
	double finish[PST_SIM_STREAMS];
	double virtual_time;
	uint64_t waiting; /* bit i is set if units of stream i wait for the link */
	uint64_t service_ps, packet_ps, latency_ps, switch_ps, busy_ps, free_ps;
	/* last: stream of the unit that the link sent last; owner: stream whose chunk the link
	 * started last */
	unsigned last, owner;
	/* For the arbiter wrr (weighted round robin): number of units that stream `last` may still
	 * send before another stream has its turn. */
	double credit;
	bool busy;
};

struct pst_sim {
	struct server servers[PST_SIM_LINKS];
	struct unit units[PST_SIM_UNITS];
	struct event heap[EVENTS];
	/* for each chunk: how many of its units have reached the end of the stream's path */
	uint16_t done[PST_SIM_UNITS];
	unsigned heap_count, unit_bytes, units_per_chunk;
	uint64_t order, random, warm_ps, end_ps;
	const struct pst_sim_net *net;
	const struct pst_sim_opts *opts;
	struct pst_sim_result *out;
};

unsigned long pst_sim_bytes(void)
{
	return sizeof(struct pst_sim);
}

/* Returns a pseudorandom number from 0 to 1 (excluded), from the generator splitmix64. */
static double random_unit(struct pst_sim *s)
{
	uint64_t z = s->random += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* ---- the events, a binary heap ---- */

static bool event_before(const struct event *a, const struct event *b)
{
	return a->time_ps != b->time_ps ? a->time_ps < b->time_ps : a->order < b->order;
}

static void event_add(struct pst_sim *s, uint64_t time_ps, uint32_t what)
{
	struct event e = {time_ps, s->order++, what};
	unsigned at = s->heap_count++;

	while (at && event_before(&e, &s->heap[(at - 1) / 2])) {
		s->heap[at] = s->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	s->heap[at] = e;
}

static struct event event_take(struct pst_sim *s)
{
	struct event top = s->heap[0], last = s->heap[--s->heap_count];
	unsigned at = 0, child;

	while ((child = 2 * at + 1) < s->heap_count) {
		if (child + 1 < s->heap_count && event_before(&s->heap[child + 1], &s->heap[child]))
			child++;
		if (!event_before(&s->heap[child], &last))
			break;
		s->heap[at] = s->heap[child];
		at = child;
	}
	s->heap[at] = last;
	return top;
}

/* ---- the arbiters ---- */

/* Picks streams in turn. Bit i of `set` stands for stream i. Returns the lowest stream in the set
 * that is higher than `last`, or the lowest of all if there is none. The set must not be empty. */
static unsigned stream_after(uint64_t set, unsigned last)
{
	uint64_t later = last >= 63 ? 0 : set & ~((2ull << last) - 1);

	return (unsigned)__builtin_ctzll(later ? later : set);
}

static unsigned pick_wfq(const struct server *v)
{
	unsigned best = NONE;

	for (uint64_t set = v->waiting; set; set &= set - 1) {
		unsigned i = (unsigned)__builtin_ctzll(set);

		/* If several streams have the same finish time, picks the one that follows
		 * stream `last` in turn, so that the arbiter prefers no stream. */
		if (best == NONE || v->finish[i] < v->finish[best] ||
		    (v->finish[i] <= v->finish[best] && best <= v->last && i > v->last))
			best = i;
	}
	return best;
}

static unsigned pick_priority(const struct pst_sim *s, const struct server *v)
{
	unsigned best = 0;
	uint64_t set = 0;

	for (uint64_t left = v->waiting; left; left &= left - 1) {
		unsigned i = (unsigned)__builtin_ctzll(left);
		unsigned priority = s->net->streams[i].priority;

		if (set && priority < best)
			continue;
		if (!set || priority > best)
			set = 0;
		best = priority;
		set |= 1ull << i;
	}
	return stream_after(set, v->last);
}

/* Returns the stream whose unit the link `v` sends next. s->opts->arbiter selects the rule of this
 * choice. */
static unsigned stream_pick(const struct pst_sim *s, struct server *v)
{
	unsigned next;

	switch (s->opts->arbiter) {
	case PST_SIM_WRR:
		if (v->last != NONE && v->credit >= 1 && v->waiting >> v->last & 1) {
			v->credit -= 1;
			return v->last;
		}
		next = stream_after(v->waiting, v->last == NONE ? 63 : v->last);
		v->credit = s->net->streams[next].weight - 1;
		return next;
	case PST_SIM_WFQ:
		return pick_wfq(v);
	case PST_SIM_PRIORITY:
		return pick_priority(s, v);
	default:
		return stream_after(v->waiting, v->last == NONE ? 63 : v->last);
	}
}

/* ---- the links ---- */

static void queue_add(struct pst_sim *s, struct server *v, unsigned u)
{
	struct unit *unit = &s->units[u];
	struct queue *q = &v->queues[unit->stream];
	uint64_t bit = 1ull << unit->stream;

	unit->next = NONE;
	if (v->waiting & bit) {
		s->units[q->tail].next = (uint16_t)u;
	} else {
		q->head = (uint16_t)u;
		v->finish[unit->stream] = fmax(v->finish[unit->stream], v->virtual_time) +
					  1 / s->net->streams[unit->stream].weight;
	}
	q->tail = (uint16_t)u;
	v->waiting |= bit;
}

static unsigned queue_take(struct pst_sim *s, struct server *v, unsigned stream)
{
	struct queue *q = &v->queues[stream];
	unsigned u = q->head;

	q->head = s->units[u].next;
	v->virtual_time = v->finish[stream];
	if (q->head == NONE)
		v->waiting &= ~(1ull << stream);
	else
		v->finish[stream] += 1 / s->net->streams[stream].weight;
	return u;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Returns how many ps of the time between `from` and `to` are in the measured part of the
 * simulation, which begins after the first tenth. */
static uint64_t measured(const struct pst_sim *s, uint64_t from, uint64_t to)
{
	from = later(from, s->warm_ps);
	to = to < s->end_ps ? to : s->end_ps;
	return to > from ? to - from : 0;
}

/* Returns the time, at least `now`, at which a unit may start on the link `next`. The link `v` has
 * started to send the unit, at the time now - early. Also sets the unit's ahead_ps and tail_ps for
 * the link `next`. */
static uint64_t next_arrival(const struct server *v, const struct server *next, struct unit *unit,
			     uint64_t now, uint64_t early)
{
	uint64_t head = now - early - unit->ahead_ps + v->latency_ps + v->packet_ps;
	uint64_t tail = v->free_ps + v->latency_ps + next->packet_ps;
	uint64_t arrival = later(head, now);

	unit->tail_ps = v->free_ps + v->latency_ps;
	if (tail > next->service_ps)
		arrival = later(arrival, tail - next->service_ps);
	unit->ahead_ps = arrival - head;
	return arrival;
}

/* Returns how many ps before `now` the link `v` began to send a unit, which takes `time` ps. The
 * link begins when the unit's first TLP has arrived, but not before it is idle. The link must not
 * be done before the unit's last TLP has arrived and been sent. */
static uint64_t head_start(const struct server *v, const struct unit *unit, uint64_t now,
			   uint64_t time)
{
	uint64_t early = unit->ahead_ps, end = unit->tail_ps + v->packet_ps;

	if (now + time <= end)
		return 0;
	early = early < now + time - end ? early : now + time - end;
	early = early < now - v->free_ps ? early : now - v->free_ps;
	return early < time ? early : time;
}

/* If link number `l` is idle and units wait for it, starts to send the unit that the arbiter
 * picks. */
static void link_start(struct pst_sim *s, unsigned l, uint64_t now)
{
	struct server *v = &s->servers[l];
	const struct pst_sim_stream *stream;
	unsigned pick, u;
	uint64_t time = v->service_ps, arrival, early;
	struct unit *unit;

	if (v->busy || !v->waiting)
		return;
	pick = stream_pick(s, v);
	u = queue_take(s, v, pick);
	unit = &s->units[u];
	stream = &s->net->streams[pick];
	if (s->opts->jitter > 0)
		time = (uint64_t)((double)time * (1 + s->opts->jitter * (2 * random_unit(s) - 1)));
	if (unit->first) {
		if (v->owner != NONE && v->owner != pick)
			time += v->switch_ps;
		v->owner = pick;
	}
	v->last = pick;
	v->busy = true;
	early = head_start(v, unit, now, time);
	unit->ahead_ps -= early;
	v->free_ps = now - early + time;
	v->busy_ps += measured(s, now - early, v->free_ps);
	event_add(s, v->free_ps, LINK_EVENT | l);
	arrival = v->free_ps + v->latency_ps;
	if (++unit->hop < stream->hops)
		arrival = next_arrival(v, &s->servers[stream->path[unit->hop]], unit, now, early);
	event_add(s, arrival, u);
}

/* Lets a stream send chunk number `chunk`: puts all units of the chunk into the queue of the first
 * link on the stream's path. */
static void chunk_issue(struct pst_sim *s, unsigned chunk, uint64_t now)
{
	unsigned first = chunk * s->units_per_chunk, stream = s->units[first].stream;
	unsigned link = s->net->streams[stream].path[0];

	s->done[chunk] = 0;
	for (unsigned i = 0; i < s->units_per_chunk; i++) {
		struct unit *unit = &s->units[first + i];

		unit->born_ps = now;
		unit->ahead_ps = 0;
		unit->tail_ps = now;
		unit->hop = 0;
		unit->first = i == 0;
		s->out->bytes_in += s->unit_bytes;
		queue_add(s, &s->servers[link], first + i);
	}
	link_start(s, link, now);
}

/* Returns which bucket of the histogram counts a latency. Each power of two has 32 buckets, so that
 * a bucket is at most 3 % wide. Bucket 0 also has all latencies below 32 ns. */
static unsigned bucket_of(uint64_t ns)
{
	unsigned power = 63 - (unsigned)__builtin_clzll(ns | 32), at;

	at = (power - 5) * 32 + (unsigned)(ns < 32 ? 0 : (ns >> (power - 5)) - 32);
	return at < PST_SIM_BUCKETS ? at : PST_SIM_BUCKETS - 1;
}

/* Counts a unit that has reached the end of its path. If it is the last unit of its chunk, the
 * stream sends another chunk, so that the number of chunks in flight stays constant. */
static void unit_done(struct pst_sim *s, unsigned u, uint64_t now)
{
	const struct unit *unit = &s->units[u];
	unsigned chunk = u / s->units_per_chunk;

	s->out->bytes_out += s->unit_bytes;
	if (now > s->warm_ps)
		s->out->stream_bytes_per_s[unit->stream] += s->unit_bytes;
	if (++s->done[chunk] < s->units_per_chunk)
		return;
	if (now > s->warm_ps)
		s->out->latency[bucket_of((now - unit->born_ps) / 1000)]++;
	chunk_issue(s, chunk, now);
}

/* ---- a run ---- */

static double wire_bytes(const struct pst_sim_link *l, const struct pst_sim_opts *o, double bytes)
{
	return l->packets ? bytes + ceil(bytes / o->payload) * o->overhead : bytes;
}

static uint64_t to_ps(double seconds)
{
	return (uint64_t)(seconds * 1e12 + 0.5);
}

static void servers_init(struct pst_sim *s)
{
	for (unsigned i = 0; i < s->net->link_count; i++) {
		const struct pst_sim_link *l = &s->net->links[i];
		struct server *v = &s->servers[i];
		unsigned packet =
			s->opts->payload < s->unit_bytes ? s->opts->payload : s->unit_bytes;

		memset(v, 0, sizeof(*v));
		v->last = v->owner = NONE;
		v->service_ps = to_ps(wire_bytes(l, s->opts, s->unit_bytes) / l->bytes_per_s);
		v->packet_ps = to_ps(wire_bytes(l, s->opts, packet) / l->bytes_per_s);
		v->latency_ps = to_ps(l->latency_ns * 1e-9);
		v->switch_ps = to_ps(l->switch_ns * 1e-9);
	}
}

static const char *sim_init(struct pst_sim *s)
{
	const struct pst_sim_opts *o = s->opts;
	unsigned each;

	if (!s->net->stream_count || s->net->stream_count > PST_SIM_STREAMS ||
	    s->net->link_count > PST_SIM_LINKS)
		return "the simulator holds 1 to 64 streams and at most 512 links";
	s->unit_bytes = o->exact && o->payload < o->chunk ? o->payload : o->chunk;
	s->units_per_chunk = (o->chunk + s->unit_bytes - 1) / s->unit_bytes;
	each = s->units_per_chunk * o->depth;
	if ((uint64_t)each * s->net->stream_count > PST_SIM_UNITS)
		return "more units in flight than the simulator holds (32768): give a smaller "
		       "chunk, depth or number of streams";
	s->heap_count = 0;
	s->order = 0;
	s->random = o->seed;
	s->end_ps = to_ps(o->seconds);
	s->warm_ps = s->end_ps / 10;
	memset(s->out, 0, sizeof(*s->out));
	servers_init(s);
	for (unsigned i = 0; i < each * s->net->stream_count; i++)
		s->units[i].stream = (uint16_t)(i / s->units_per_chunk % s->net->stream_count);
	for (unsigned i = 0; i < o->depth * s->net->stream_count; i++)
		chunk_issue(s, i, 0);
	return NULL;
}

const char *pst_sim_run(struct pst_sim *s, const struct pst_sim_net *net,
			const struct pst_sim_opts *opts, struct pst_sim_result *out)
{
	const char *wrong;
	double time;

	s->net = net;
	s->opts = opts;
	s->out = out;
	wrong = sim_init(s);
	if (wrong)
		return wrong;
	while (s->heap[0].time_ps <= s->end_ps) {
		struct event e = event_take(s);
		unsigned l = e.what & ~LINK_EVENT;

		out->events++;
		if (e.what & LINK_EVENT) {
			s->servers[l].busy = false;
		} else {
			const struct pst_sim_stream *st = &net->streams[s->units[e.what].stream];
			unsigned hop = s->units[e.what].hop;

			if (hop == st->hops) {
				unit_done(s, e.what, e.time_ps);
				continue;
			}
			l = st->path[hop];
			queue_add(s, &s->servers[l], e.what);
		}
		link_start(s, l, e.time_ps);
	}
	time = (double)(s->end_ps - s->warm_ps) * 1e-12;
	for (unsigned i = 0; i < net->stream_count; i++)
		out->stream_bytes_per_s[i] /= time;
	for (unsigned i = 0; i < net->link_count; i++)
		out->link_use[i] = (double)s->servers[i].busy_ps * 1e-12 / time;
	for (unsigned i = 0; i < opts->depth * net->stream_count; i++)
		out->bytes_inside += (uint64_t)(s->units_per_chunk - s->done[i]) * s->unit_bytes;
	return NULL;
}

double pst_sim_percentile(const struct pst_sim_result *r, double p)
{
	uint64_t total = 0, seen = 0;

	for (unsigned i = 0; i < PST_SIM_BUCKETS; i++)
		total += r->latency[i];
	for (unsigned i = 0; i < PST_SIM_BUCKETS; i++) {
		seen += r->latency[i];
		if (total && (double)seen >= p * (double)total)
			return ldexp(32 + i % 32 + 1, (int)(i / 32));
	}
	return NAN;
}

/* ---- the closed form ---- */

double pst_sim_capacity(const struct pst_sim_link *l, const struct pst_sim_opts *o, bool shared)
{
	double time = wire_bytes(l, o, o->chunk) / l->bytes_per_s;

	return o->chunk / (time + (shared ? l->switch_ns * 1e-9 : 0));
}

/* Returns the time in seconds from the start of one chunk to the arrival of its last byte, if all
 * links on the stream's path are idle. */
static double round_trip(const struct pst_sim_net *net, const struct pst_sim_stream *s,
			 const struct pst_sim_opts *o)
{
	/* The loop computes two times for each link in turn: the chunk's first TLP reaches the link
	 * at `head`, and its last byte leaves the link at `end`. */
	double head = 0, end = 0, latency = 0;

	for (unsigned i = 0; i < s->hops; i++) {
		const struct pst_sim_link *l = &net->links[s->path[i]];
		double time = wire_bytes(l, o, o->chunk) / l->bytes_per_s;
		double packet = wire_bytes(l, o, fmin(o->payload, o->chunk)) / l->bytes_per_s;

		end = fmax(head + time, i ? end + latency + packet : 0);
		latency = l->latency_ns * 1e-9;
		head += packet + latency;
	}
	return end + latency;
}

/* The state of the computation of max-min fair rates. The computation raises the rates of all
 * streams marked `rising` at the same time. A stream stops when one of its links is full, or when
 * it reaches its own limit: the bytes that it keeps in flight, divided by the time of a chunk on
 * idle links. */
struct fill {
	/* For each link: the bytes a second that the stopped streams leave free, and the sum of
	 * the weights of its rising streams. */
	double capacity[PST_SIM_LINKS], weight[PST_SIM_LINKS];
	double limit[PST_SIM_STREAMS];
	bool rising[PST_SIM_STREAMS];
};

static double stream_weight(const struct pst_sim_stream *s, const struct pst_sim_opts *o)
{
	return o->arbiter == PST_SIM_WRR || o->arbiter == PST_SIM_WFQ ? s->weight : 1;
}

static void fill_init(struct fill *f, const struct pst_sim_net *net,
		      const struct pst_sim_opts *opts)
{
	unsigned users[PST_SIM_LINKS] = {0};

	for (unsigned i = 0; i < net->stream_count; i++) {
		for (unsigned k = 0; k < net->streams[i].hops; k++)
			users[net->streams[i].path[k]]++;
		f->limit[i] =
			(double)opts->depth * opts->chunk / round_trip(net, &net->streams[i], opts);
		f->rising[i] = false;
	}
	for (unsigned i = 0; i < net->link_count; i++)
		f->capacity[i] = pst_sim_capacity(&net->links[i], opts, users[i] > 1);
}

/* Sets the final rate of stream `i`, and subtracts it from the free capacity of each link that the
 * stream uses. */
static void stream_settle(struct fill *f, const struct pst_sim_net *net, unsigned i, double *rates,
			  double rate)
{
	rates[i] = rate;
	f->rising[i] = false;
	for (unsigned k = 0; k < net->streams[i].hops; k++)
		f->capacity[net->streams[i].path[k]] -= rate;
}

/* Raises the rates of all rising streams until a full link or a stream's limit stops at least one
 * of them. Sets the final rates of the streams that stop. Returns false if no stream was rising. */
static bool fill_step(struct fill *f, const struct pst_sim_net *net,
		      const struct pst_sim_opts *opts, double *rates)
{
	double least = INFINITY, share[PST_SIM_STREAMS];

	memset(f->weight, 0, sizeof(f->weight));
	for (unsigned i = 0; i < net->stream_count; i++)
		for (unsigned k = 0; f->rising[i] && k < net->streams[i].hops; k++)
			f->weight[net->streams[i].path[k]] += stream_weight(&net->streams[i], opts);
	for (unsigned i = 0; i < net->stream_count; i++) {
		if (!f->rising[i])
			continue;
		share[i] = f->limit[i] / stream_weight(&net->streams[i], opts);
		for (unsigned k = 0; k < net->streams[i].hops; k++) {
			unsigned l = net->streams[i].path[k];

			share[i] = fmin(share[i], fmax(0, f->capacity[l]) / f->weight[l]);
		}
		least = fmin(least, share[i]);
	}
	if (isinf(least))
		return false;
	for (unsigned i = 0; i < net->stream_count; i++)
		if (f->rising[i] && share[i] <= least * (1 + 1e-12))
			stream_settle(f, net, i, rates,
				      least * stream_weight(&net->streams[i], opts));
	return true;
}

void pst_sim_closed(const struct pst_sim_net *net, const struct pst_sim_opts *opts, double *rates)
{
	struct fill f;
	bool done = false;

	fill_init(&f, net, opts);
	/* With the arbiter `priority`, computes the streams of the highest priority first. The
	 * streams of a lower priority share what remains. With the other arbiters, one round of the
	 * loop computes all streams. */
	for (unsigned rank = PST_SIM_STREAMS; rank-- > 0 && !done;) {
		done = opts->arbiter != PST_SIM_PRIORITY;
		for (unsigned i = 0; i < net->stream_count; i++)
			f.rising[i] = done || net->streams[i].priority == rank;
		while (fill_step(&f, net, opts, rates))
			;
	}
}
