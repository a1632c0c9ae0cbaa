// SPDX-License-Identifier: Apache-2.0
// The report's own script: charts, tables, theme. No library, nothing from the network.
"use strict";
(() => {
	const data = JSON.parse(document.getElementById("report-data").textContent);
	const SVG = "http://www.w3.org/2000/svg";
	const number = new Intl.NumberFormat("en-US");
	const colour = (i) => `var(--c${Math.min(i, 8)})`;

	// ---- small helpers ----
	function svg(tag, attributes, parent, text) {
		const node = document.createElementNS(SVG, tag);
		for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
		if (text !== undefined) node.textContent = text;
		if (parent) parent.append(node);
		return node;
	}
	function html(tag, attributes, parent, text) {
		const node = document.createElement(tag);
		for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
		if (text !== undefined) node.textContent = text;
		if (parent) parent.append(node);
		return node;
	}
	function short(value) {
		for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
			if (Math.abs(value) >= limit) return `${+(value / limit).toPrecision(3)} ${unit}`;
		return `${+value.toPrecision(3)} `;
	}
	function time(ns) {
		for (const [limit, unit] of [[3.6e12, "h"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"]])
			if (Math.abs(ns) >= limit) return `${+(ns / limit).toPrecision(5)} ${unit}`;
		return `${+ns.toPrecision(5)} ns`;
	}
	function amount(value, unit) {
		return unit === "ns" ? time(value) : unit === "B" ? `${number.format(value)} B` : number.format(value);
	}
	function ticks(low, high, wanted) {
		const span = high - low;
		if (!(span > 0)) return [low];
		const raw = span / wanted;
		const power = 10 ** Math.floor(Math.log10(raw));
		const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
		const out = [];
		for (let v = Math.ceil(low / step) * step; v <= high + step / 1e6; v += step) out.push(v);
		return out;
	}
	// Round values on a logarithmic axis: 1, 2, 5 of each power of ten, or powers of two for bytes.
	function scaleTicks(h, low, high, wanted) {
		const out = [];
		if (h.unit !== "ns") {
			const every = Math.max(1, Math.ceil(Math.log2(high / low) / wanted));
			for (let e = Math.floor(Math.log2(low)); 2 ** e <= high; e += every) out.push(2 ** e);
			return out;
		}
		const decades = Math.log10(high / low);
		const digits = decades * 3 <= wanted ? [1, 2, 5] : [1];
		for (let e = Math.floor(Math.log10(low)); 10 ** e <= high; e++)
			for (const digit of digits) if (digit * 10 ** e >= low) out.push(digit * 10 ** e);
		return out;
	}
	function tip(box) {
		const node = html("div", { class: "tip", hidden: "" }, box);
		return {
			hide: () => { node.hidden = true; },
			show(x, y, rows) {
				node.replaceChildren(...rows.map(([label, value, mark]) => {
					const row = html("div");
					const left = html("span", {}, row);
					if (mark) html("i", { style: `background:${mark}` }, left);
					left.append(label);
					html("b", {}, row, value);
					return row;
				}));
				node.hidden = false;
				const room = box.clientWidth - node.offsetWidth - 4;
				node.style.left = `${Math.max(0, Math.min(x + 14, room))}px`;
				node.style.top = `${y}px`;
			},
		};
	}
	// Records are missing: hatched, in every chart over time. Times are those of the timeline's grid.
	function hatch(root, name) {
		const pattern = svg("pattern", { id: name, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("defs", {}, root));
		svg("line", { class: "hatched", x1: 1, x2: 1, y1: 0, y2: 6 }, pattern);
		return `url(#${name})`;
	}
	const bands = data.timeline ? data.timeline.bands : [];
	const marks = data.timeline ? data.timeline.marks : [];
	const missing = (from, to) => bands.some(([a, b]) => a < to && b > from);
	function onResize(box, draw) {
		let width = 0;
		new ResizeObserver(() => {
			if (box.clientWidth === width) return;
			width = box.clientWidth;
			requestAnimationFrame(draw); // drawing here would resize what is being observed
		}).observe(box);
	}

	// ---- the timeline: stacked rates, losses marked, zoom ----
	function timeline(box) {
		const t = data.timeline;
		const slots = t.records.length;
		const state = { from: 0, to: slots, what: "records", cursor: null };
		const live = document.getElementById("timeline-live");
		const hint = tip(box);
		const left = 58, right = 8, top = 14, bottom = 26;
		const at0 = (slot) => slot * t.width_ns - t.lead_ns; // time after the first record
		let plot = null;

		function columns() {
			const wanted = Math.max(40, Math.min(slots, Math.floor(box.clientWidth / 2.5)));
			const step = Math.max(1, Math.ceil((state.to - state.from) / wanted));
			const sum = (row, i) => {
				let total = 0;
				for (let k = i; k < Math.min(i + step, state.to); k++) total += row[k];
				return total;
			};
			const rows = state.what === "bytes" ? [t.bytes] : t.ops.map((op) => op.counts);
			const out = [];
			for (let i = state.from; i < state.to; i += step) {
				// The first and the last slot hold records for a part of their time only.
				const end = Math.min(Math.min(i + step, state.to) * t.width_ns, t.end_ns);
				const covered = Math.max(end - Math.max(i * t.width_ns, t.lead_ns), t.width_ns / 20) / 1e9;
				out.push({ i, step, covered, parts: rows.map((r) => sum(r, i)), lost: sum(t.lost, i) });
			}
			return out;
		}
		function draw() {
			const width = box.clientWidth, height = width < 520 ? 210 : 280;
			const inner = width - left - right, base = height - bottom;
			const cols = columns();
			const peak = Math.max(...cols.map((c) => c.parts.reduce((a, b) => a + b, 0) / c.covered), 1e-9);
			const x = (slot) => left + ((slot - state.from) / (state.to - state.from)) * inner;
			const y = (rate) => base - (rate / (peak * 1.06)) * (base - top);
			box.querySelector("svg")?.remove();
			const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
			box.prepend(root);
			for (const v of ticks(0, peak * 1.06, 4)) {
				svg("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }, root);
				svg("text", { x: left - 7, y: y(v) + 4, "text-anchor": "end" }, root, short(v).trim());
			}
			svg("text", { x: 2, y: 9 }, root, state.what === "bytes" ? "B/s" : "records/s");
			const fromNs = at0(state.from), toNs = at0(state.to);
			for (const v of ticks(Math.max(0, fromNs), toNs, Math.max(2, Math.floor(inner / 110)))) {
				const at = left + ((v - fromNs) / (toNs - fromNs)) * inner;
				svg("line", { class: "axis", x1: at, x2: at, y1: base, y2: base + 4 }, root);
				svg("text", { x: at, y: base + 17, "text-anchor": at > width - 40 ? "end" : "middle" }, root, `+${time(v)}`);
			}
			const sums = cols.map(() => 0);
			for (let k = 0; k < cols[0].parts.length; k++) {
				let path = "";
				const lower = [...sums];
				cols.forEach((c, j) => {
					sums[j] += c.parts[k] / c.covered;
					path += `${path ? "L" : "M"}${x(c.i).toFixed(1)},${y(sums[j]).toFixed(1)}H${x(Math.min(c.i + c.step, state.to)).toFixed(1)}`;
				});
				for (let j = cols.length - 1; j >= 0; j--)
					path += `L${x(Math.min(cols[j].i + cols[j].step, state.to)).toFixed(1)},${y(lower[j]).toFixed(1)}H${x(cols[j].i).toFixed(1)}`;
				const fill = state.what === "bytes" ? colour(0) : colour(t.ops[k].colour);
				svg("path", { d: `${path}Z`, style: `fill:${fill}` }, root);
			}
			svg("line", { class: "axis", x1: left, x2: width - right, y1: base, y2: base }, root);
			const edge = (ns) => Math.max(left, Math.min(width - right, x(ns / t.width_ns)));
			const hatched = hatch(root, "hatch-timeline");
			for (const [from, to] of bands) {
				if (edge(to) <= edge(from)) continue;
				svg("rect", { class: "loss", x: edge(from), y: top, width: edge(to) - edge(from), height: base - top, opacity: 0.08 }, root);
				svg("rect", { style: `fill:${hatched}`, x: edge(from), y: top, width: edge(to) - edge(from), height: base - top, opacity: 0.7 }, root);
			}
			for (const [at, text] of marks) {
				const where = x(at / t.width_ns);
				if (where < left || where > width - right) continue;
				const line = svg("line", { class: "step", x1: where, x2: where, y1: top, y2: base }, root);
				svg("title", {}, line, text);
				if (marks.length < 8) svg("text", { class: "steptext", x: where, y: 9, "text-anchor": where > width - 60 ? "end" : "middle" }, root, text);
			}
			for (const c of cols) {
				if (!c.lost) continue;
				const at = x(c.i), wide = Math.max(2, x(Math.min(c.i + c.step, state.to)) - at);
				svg("rect", { class: "loss", x: at, y: top, width: wide, height: base - top, opacity: 0.15 }, root);
				svg("rect", { style: `fill:${hatched}`, x: at, y: top, width: wide, height: base - top, opacity: 0.6 }, root);
				svg("path", { class: "loss", d: `M${at + wide / 2 - 5},${top - 10}h10l-5,9z` }, root);
			}
			plot = { root, cols, x, base, inner, width };
			if (state.cursor !== null) point(state.cursor);
		}
		function clear() {
			plot.root.querySelectorAll(".cursor,.select").forEach((n) => n.remove());
		}
		function point(j) {
			clear();
			const c = plot.cols[Math.max(0, Math.min(j, plot.cols.length - 1))];
			state.cursor = plot.cols.indexOf(c);
			const at = plot.x(c.i + c.step / 2);
			svg("line", { class: "cursor", x1: at, x2: at, y1: top, y2: plot.base }, plot.root);
			const total = c.parts.reduce((a, b) => a + b, 0);
			const rows = [[`+${time(Math.max(0, at0(c.i)))}`, `${short(total / c.covered).trim()}${state.what === "bytes" ? "B/s" : "/s"}`]];
			if (state.what === "records")
				c.parts.forEach((n, k) => { if (n) rows.push([t.ops[k].name, number.format(n), colour(t.ops[k].colour)]); });
			if (c.lost) rows.push(["lost", number.format(c.lost), "var(--bad)"]);
			hint.show(at, top, rows);
			live.textContent = rows.map((r) => `${r[0]} ${r[1]}`).join(", ");
		}
		const slotAt = (event) => {
			const ratio = (event.clientX - box.getBoundingClientRect().left - left) / plot.inner;
			return state.from + Math.max(0, Math.min(1, ratio)) * (state.to - state.from);
		};
		const columnAt = (event) => Math.min(plot.cols.length - 1, Math.floor((slotAt(event) - state.from) / plot.cols[0].step));
		function zoom(from, to) {
			const low = Math.max(0, Math.floor(from)), high = Math.min(slots, Math.ceil(to));
			if (high - low < 2) return;
			Object.assign(state, { from: low, to: high, cursor: null });
			hint.hide();
			reset.disabled = low === 0 && high === slots;
			draw();
		}
		const reset = document.getElementById("timeline-reset");
		reset.disabled = true;
		reset.addEventListener("click", () => zoom(0, slots));
		for (const button of document.querySelectorAll("[data-what]"))
			button.addEventListener("click", () => {
				state.what = button.dataset.what;
				document.querySelectorAll("[data-what]").forEach((b) => b.setAttribute("aria-pressed", b === button));
				draw();
			});
		let drag = null;
		box.addEventListener("pointerdown", (event) => {
			if (event.pointerType === "touch") return point(columnAt(event));
			drag = slotAt(event);
			box.setPointerCapture(event.pointerId);
		});
		box.addEventListener("pointermove", (event) => {
			point(columnAt(event));
			if (drag === null) return;
			const a = plot.x(Math.min(drag, slotAt(event))), b = plot.x(Math.max(drag, slotAt(event)));
			svg("rect", { class: "select", x: a, y: top, width: b - a, height: plot.base - top }, plot.root);
		});
		box.addEventListener("pointerup", (event) => {
			if (drag === null) return;
			const [a, b] = [drag, slotAt(event)].sort((p, q) => p - q);
			drag = null;
			if (b - a > (state.to - state.from) / 100) zoom(a, b);
		});
		box.addEventListener("pointerleave", () => { if (drag === null) { clear(); hint.hide(); state.cursor = null; } });
		box.addEventListener("dblclick", () => zoom(0, slots));
		box.addEventListener("keydown", (event) => {
			const middle = (state.from + state.to) / 2, span = state.to - state.from;
			const keys = {
				ArrowLeft: () => point((state.cursor ?? plot.cols.length) - 1),
				ArrowRight: () => point((state.cursor ?? -1) + 1),
				"+": () => zoom(middle - span / 4, middle + span / 4),
				"-": () => zoom(middle - span, middle + span),
				Escape: () => zoom(0, slots),
			};
			if (!keys[event.key]) return;
			event.preventDefault();
			keys[event.key]();
		});
		onResize(box, draw);
	}

	// ---- histograms with logarithmic buckets ----
	function histogram(box) {
		const h = data.histograms[box.dataset.histogram];
		const hint = tip(box);
		function draw() {
			const width = box.clientWidth, height = 170, left = 44, right = 10, top = 16, bottom = 24;
			box.querySelector("svg")?.remove();
			const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
			box.prepend(root);
			// A single bar would fill the whole width: leave some room on either side of few.
			const room = h.buckets.length < 4 ? 2 : 0;
			const low = Math.max(0, Math.log2(h.buckets[0][0] + 1) - room);
			const high = Math.log2(h.buckets.at(-1)[1] + 2) + room;
			const x = (v) => left + ((Math.log2(v + 1) - low) / Math.max(high - low, 1e-9)) * (width - left - right);
			const peak = Math.max(...h.buckets.map((b) => b[2]));
			const base = height - bottom;
			const scale = h.log ? (n) => Math.log10(n + 1) / Math.log10(peak + 1) : (n) => n / peak;
			const y = (n) => base - scale(n) * (base - top);
			const steps = h.log ? [1, 10, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9].filter((v) => v <= peak) : ticks(0, peak, 3);
			for (const v of steps.filter((_, i) => steps.length < 6 || i % 2 === 0)) {
				svg("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }, root);
				svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, root, short(v).trim());
			}
			for (const [a, b, n] of h.buckets) {
				if (!n) continue;
				const bar = svg("rect", { x: x(a) + 0.5, width: Math.max(1, x(b + 1) - x(a) - 1), y: y(n), height: Math.max(1, base - y(n)), rx: 1, style: `fill:${colour(h.colour || 0)}` }, root);
				bar.addEventListener("pointerenter", () => hint.show(x(a), 0, [[a === b ? amount(a, h.unit) : `${amount(a, h.unit)} to ${amount(b, h.unit)}`, number.format(n)]]));
				bar.addEventListener("pointerleave", hint.hide);
			}
			svg("line", { class: "axis", x1: left, x2: width - right, y1: base, y2: base }, root);
			let free = -1e9;
			for (const v of scaleTicks(h, 2 ** low, 2 ** high, (width - left) / 75)) {
				const at = x(v);
				if (at < free + 50 || at > width - 16 || at < left - 1) continue;
				free = at;
				svg("line", { class: "axis", x1: at, x2: at, y1: base, y2: base + 3 }, root);
				svg("text", { x: at, y: base + 15, "text-anchor": "middle" }, root, amount(v, h.unit));
			}
			let label = -1e9;
			for (const [name, value] of h.marks || []) {
				const at = x(value);
				svg("line", { class: "mark", x1: at, x2: at, y1: top, y2: base }, root);
				if (at - label > 34) svg("text", { x: at, y: 10, "text-anchor": at > width - 30 ? "end" : "middle" }, root, name);
				label = Math.max(at, label);
			}
		}
		onResize(box, draw);
	}

	// ---- latency over time ----
	function heat(box) {
		const h = data.heats[box.dataset.heat];
		const hint = tip(box);
		const canvas = html("canvas", { "aria-hidden": "true" }, null);
		box.prepend(canvas);
		const left = 56, bottom = 22, height = 170;
		const rows = h.rows.length, cols = h.columns;
		const peak = Math.max(1, ...h.cells.map((c) => c[2]));
		function draw() {
			const width = box.clientWidth, ratio = window.devicePixelRatio || 1;
			canvas.width = width * ratio;
			canvas.height = height * ratio;
			canvas.style.height = `${height}px`;
			const g = canvas.getContext("2d");
			g.scale(ratio, ratio);
			const css = getComputedStyle(document.documentElement);
			const w = (width - left) / cols, t = (height - bottom) / rows;
			g.fillStyle = css.getPropertyValue("--soft");
			g.fillRect(left, 0, width - left, height - bottom);
			g.fillStyle = css.getPropertyValue("--c0");
			for (const [c, r, n] of h.cells) {
				g.globalAlpha = 0.15 + 0.85 * (Math.log(n + 1) / Math.log(peak + 1));
				g.fillRect(left + c * w, height - bottom - (r + 1) * t, Math.max(1, w), Math.max(1, t - 0.5));
			}
			g.globalAlpha = 0.8;
			g.strokeStyle = css.getPropertyValue("--bad");
			for (const [from, to] of bands) {
				const a = left + Math.max(0, (from / h.width_ns) * w), b = left + Math.min(width - left, (to / h.width_ns) * w);
				g.save();
				g.beginPath();
				g.rect(a, 0, Math.max(1, b - a), height - bottom);
				g.clip();
				g.beginPath();
				for (let p = a - height; p < b; p += 6) {
					g.moveTo(p, height - bottom);
					g.lineTo(p + height - bottom, 0);
				}
				g.stroke();
				g.restore();
			}
			g.strokeStyle = css.getPropertyValue("--accent");
			g.setLineDash([2, 3]);
			for (const [at] of marks) {
				g.beginPath();
				g.moveTo(left + (at / h.width_ns) * w, 0);
				g.lineTo(left + (at / h.width_ns) * w, height - bottom);
				g.stroke();
			}
			g.setLineDash([]);
			g.globalAlpha = 1;
			g.fillStyle = css.getPropertyValue("--dim");
			g.font = "11px system-ui, sans-serif";
			g.textAlign = "right";
			const every = Math.max(1, Math.ceil(rows / 6));
			for (let r = 0; r < rows; r += every) g.fillText(time(+h.rows[r].toPrecision(2)), left - 6, height - bottom - r * t - 1);
			g.textAlign = "center";
			for (const v of ticks(0, cols * h.width_ns, Math.max(2, Math.floor(width / 140))).slice(1))
				if (v / h.width_ns < cols * 0.97) g.fillText(`+${time(v)}`, left + (v / h.width_ns) * w, height - 6);
		}
		box.addEventListener("pointermove", (event) => {
			const area = box.getBoundingClientRect();
			const c = Math.floor(((event.clientX - area.left - left) / (area.width - left)) * cols);
			const r = Math.floor(((height - bottom - (event.clientY - area.top)) / (height - bottom)) * rows);
			const cell = h.cells.find((k) => k[0] === c && k[1] === r);
			if (!cell) return hint.hide();
			hint.show(event.clientX - area.left, Math.max(0, event.clientY - area.top - 60), [[`+${time(c * h.width_ns)}`, ""], [`from ${time(h.rows[r])}`, number.format(cell[2])]]);
		});
		box.addEventListener("pointerleave", hint.hide);
		onResize(box, draw);
		new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
		window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
	}

	// ---- counters: the mean over time ----
	function counter(box) {
		const c = data.counters[Number(box.dataset.counter)];
		const hint = tip(box);
		const known = c.mean.filter((v) => v !== null);
		const low = Math.min(0, ...known), high = Math.max(...known, low + 1e-9);
		const left = 52, right = 8, top = 10, bottom = 24, height = 150, base = height - bottom;
		const y = (v) => base - ((v - low) / ((high - low) * 1.05)) * (base - top);
		let mark = null;
		function draw() {
			const width = box.clientWidth, inner = width - left - right;
			const x = (i) => left + ((i + 0.5) / c.mean.length) * inner;
			box.querySelector("svg")?.remove();
			const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
			box.prepend(root);
			for (const v of ticks(low, high * 1.05, 3)) {
				svg("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }, root);
				svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, root, short(v).trim());
			}
			const span = c.mean.length * c.width_ns;
			for (const v of ticks(0, span, Math.max(2, Math.floor(inner / 110))))
				if (v < span * 0.98) svg("text", { x: left + (v / span) * inner, y: base + 16, "text-anchor": "middle" }, root, `+${time(v)}`);
			const hatched = hatch(root, `hatch-counter-${box.dataset.counter}`);
			const at = (ns) => left + Math.min(1, Math.max(0, ns / span)) * inner;
			for (const [from, to] of bands)
				svg("rect", { style: `fill:${hatched}`, x: at(from), y: top, width: Math.max(1, at(to) - at(from)), height: base - top, opacity: 0.7 }, root);
			for (const [when] of marks) svg("line", { class: "step", x1: at(when), x2: at(when), y1: top, y2: base }, root);
			// Nothing is known of the values where records are missing: the line is broken there.
			let path = "", last = null;
			c.mean.forEach((v, i) => {
				if (v === null) return;
				const broken = last === null || missing((last + 0.5) * c.width_ns, (i + 0.5) * c.width_ns);
				path += `${broken ? "M" : "L"}${x(i).toFixed(1)},${y(v).toFixed(1)}`;
				last = i;
			});
			svg("path", { d: path, style: `fill:none;stroke:${colour(0)};stroke-width:1.6` }, root);
			svg("line", { class: "axis", x1: left, x2: width - right, y1: base, y2: base }, root);
			mark = svg("circle", { r: 3.5, style: `fill:${colour(0)}`, visibility: "hidden" }, root);
		}
		box.addEventListener("pointermove", (event) => {
			const area = box.getBoundingClientRect();
			const i = Math.floor(((event.clientX - area.left - left) / (area.width - left - right)) * c.mean.length);
			const v = c.mean[i];
			if (v === null || v === undefined) return hint.hide();
			mark.setAttribute("cx", left + ((i + 0.5) / c.mean.length) * (area.width - left - right));
			mark.setAttribute("cy", y(v));
			mark.setAttribute("visibility", "visible");
			hint.show(event.clientX - area.left, 0, [[`+${time(i * c.width_ns)}`, `${number.format(v)} ${c.unit}`.trim()]]);
		});
		box.addEventListener("pointerleave", () => { hint.hide(); mark.setAttribute("visibility", "hidden"); });
		onResize(box, draw);
	}

	// ---- tables: sort by a click on the head ----
	function sortable(table) {
		const body = table.tBodies[0];
		[...table.tHead.rows[0].cells].forEach((cell, column) => {
			if (cell.hasAttribute("data-nosort")) return;
			const button = html("button", { type: "button" }, null, cell.textContent);
			cell.replaceChildren(button);
			button.addEventListener("click", () => {
				const down = cell.getAttribute("aria-sort") !== "descending";
				for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
				cell.setAttribute("aria-sort", down ? "descending" : "ascending");
				const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
				const compare = (a, b) => {
					const [p, q] = [key(a), key(b)];
					const [n, m] = [Number(p), Number(q)];
					return Number.isNaN(n) || Number.isNaN(m) ? p.localeCompare(q) : n - m;
				};
				body.append(...[...body.rows].sort((a, b) => (down ? -compare(a, b) : compare(a, b))));
			});
		});
	}

	// ---- the record table: search and pages ----
	function records(box) {
		const rows = data.sample.rows;
		const body = box.querySelector("tbody");
		const find = document.getElementById("record-search");
		const opcode = document.getElementById("record-opcode");
		const cpu = document.getElementById("record-cpu");
		const said = document.getElementById("record-count");
		const [back, forth] = [document.getElementById("record-back"), document.getElementById("record-forth")];
		const PAGE = 50;
		let page = 0, hits = rows;
		const text = rows.map((r) => r.join(" ").toLowerCase());
		for (const [select, column] of [[opcode, 3], [cpu, 4]])
			for (const value of [...new Set(rows.map((r) => String(r[column])))].sort((a, b) => a.localeCompare(b, "en", { numeric: true })))
				html("option", { value }, select, value);
		const classes = ["n", "n", "n", "", "n", "", "n", "wide mono"];
		function show() {
			const last = Math.max(0, Math.ceil(hits.length / PAGE) - 1);
			page = Math.max(0, Math.min(page, last));
			body.replaceChildren(...hits.slice(page * PAGE, page * PAGE + PAGE).map((r) => {
				const row = html("tr");
				r.slice(0, 8).forEach((value, i) => html("td", classes[i] ? { class: classes[i] } : {}, row, String(value)));
				if (r[8]) row.className = "hot";
				return row;
			}));
			said.textContent = `${number.format(hits.length)} of ${number.format(rows.length)} records, page ${page + 1} of ${last + 1}`;
			back.disabled = page === 0;
			forth.disabled = page === last;
		}
		function filter() {
			const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
			hits = rows.filter((r, i) => words.every((w) => text[i].includes(w)) && (!opcode.value || String(r[3]) === opcode.value) && (!cpu.value || String(r[4]) === cpu.value));
			page = 0;
			show();
		}
		find.addEventListener("input", filter);
		opcode.addEventListener("change", filter);
		cpu.addEventListener("change", filter);
		back.addEventListener("click", () => { page--; show(); });
		forth.addEventListener("click", () => { page++; show(); });
		show();
	}

	function theme() {
		const button = document.getElementById("theme");
		const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
		const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
		button.addEventListener("click", () => {
			document.documentElement.dataset.theme = dark() ? "light" : "dark";
			label();
		});
		button.hidden = false;
		label();
	}
	function follow() {
		const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
		const seen = new IntersectionObserver((entries) => {
			for (const entry of entries)
				if (entry.isIntersecting) links.forEach((a, id) => (id === entry.target.id ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current")));
		}, { rootMargin: "-20% 0px -70% 0px" });
		document.querySelectorAll("main section[id]").forEach((s) => seen.observe(s));
	}

	document.documentElement.classList.add("js");
	theme();
	follow();
	const chart = document.getElementById("timeline-chart");
	if (chart && data.timeline) timeline(chart);
	document.querySelectorAll("[data-histogram]").forEach(histogram);
	document.querySelectorAll("[data-heat]").forEach(heat);
	document.querySelectorAll("[data-counter]").forEach(counter);
	document.querySelectorAll("table.sortable").forEach(sortable);
	const table = document.getElementById("records-table");
	if (table) records(table);
})();
