// The tables and curves of the gallery. No dependency, no network: all data stands in the page.
"use strict"
;(() => {
  const NONE = ""

  // -- tables: sorted by the buttons of their headers, filtered by the form before them ------------------------------

  function sortable(table) {
    const headers = [...(table.tHead?.rows[0].cells ?? [])]
    headers.forEach((header, column) => {
      const button = header.querySelector("button")
      if (button) button.addEventListener("click", () => sort(table, headers, column))
    })
  }

  function sort(table, headers, column) {
    const header = headers[column]
    const number = header.dataset.kind === "number"
    const first = number ? "descending" : "ascending"
    const before = header.getAttribute("aria-sort")
    const order = before === null ? first : before === "ascending" ? "descending" : "ascending"
    const sign = order === "ascending" ? 1 : -1
    headers.forEach(other => other.removeAttribute("aria-sort"))
    header.setAttribute("aria-sort", order)
    const rows = [...table.tBodies[0].rows].map(row => [value(row.cells[column], number), row])
    rows.sort(([a], [b]) => {
      if (a === NONE || b === NONE) return (a === NONE) - (b === NONE) // what is missing stays last
      return sign * (number ? a - b : a.localeCompare(b))
    })
    table.tBodies[0].append(...rows.map(([, row]) => row))
  }

  function value(cell, number) {
    if (!cell) return NONE
    const text = cell.dataset.sort ?? cell.textContent.trim()
    if (!number) return text
    const parsed = parseFloat(text.replace(/,/g, "").replace("−", "-"))
    return Number.isNaN(parsed) ? NONE : parsed
  }

  function filtered(form) {
    const table = document.getElementById(form.dataset.table)
    const rows = [...table.tBodies[0].rows]
    const output = form.querySelector("output")
    const update = () => {
      const wanted = [...form.querySelectorAll("select")].filter(select => select.value)
      const text = form.elements.text.value.trim().toLowerCase()
      let shown = 0
      for (const row of rows) {
        const fits =
          (row.dataset.name ?? "").toLowerCase().includes(text) &&
          wanted.every(select => matches((row.dataset[select.name] ?? "").split("|"), select.value))
        row.hidden = !fits
        shown += fits
      }
      output.textContent = `${shown} of ${rows.length}`
    }
    form.addEventListener("input", update)
    form.addEventListener("submit", event => event.preventDefault())
    form.addEventListener("reset", () => setTimeout(update))
    update()
  }

  const matches = (values, wanted) => values.includes(wanted)

  // -- columns: on a narrow screen a list chooses which few of a table are shown ------------------------------------

  function columns(select) {
    const { table, columns: few, first } = select.dataset // the first columns are always shown
    const update = () => {
      for (const row of document.getElementById(table).rows)
        [...row.cells].slice(first).forEach((cell, place) => cell.classList.toggle("gallery-wide", Math.floor(place / few) !== Number(select.value)))
    }
    select.addEventListener("input", update)
    update()
  }

  // -- curves: sliders choose one of those that the page has ---------------------------------------------------------

  const SVG = "http://www.w3.org/2000/svg"
  const HEIGHT = 280
  const EDGE = { top: 32, right: 12, bottom: 40, left: 62 } // the legend stands above
  const KEY = 74 // width of an entry of the legend
  const ROOM = 0.05 // of the range of values, above and below the curves

  function curve(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent)
    const inputs = [...figure.querySelectorAll("input")]
    const outputs = [...figure.querySelectorAll(".gallery-slider output")]
    const drawing = figure.querySelector(".gallery-drawing")
    const caption = figure.querySelector("figcaption")
    const update = () => {
      const chosen = inputs.map((input, place) => data.sliders[place].values[Number(input.value)])
      outputs.forEach((output, place) => (output.textContent = String(chosen[place])))
      inputs.forEach((input, place) => input.setAttribute("aria-valuetext", String(chosen[place])))
      const scores = data.curves[inputs.map(input => input.value).join(",")]
      const options = chosen.map((value, place) => `${data.sliders[place].name}=${value}`).join(", ")
      const flat = !inputs.length && typeof scores !== "string" && same(scores) // the caption says all
      const shown = typeof scores === "string" ? refused(scores) : draw(data, scores, drawing.clientWidth)
      drawing.replaceChildren(...(flat ? [] : [shown]))
      caption.textContent = described(data, scores, options)
    }
    inputs.forEach(input => input.addEventListener("input", update))
    let width = drawing.clientWidth
    new ResizeObserver(() => {
      if (drawing.clientWidth !== width) {
        width = drawing.clientWidth
        update()
      }
    }).observe(drawing)
    update()
  }

  function refused(reason) {
    const text = document.createElement("p")
    text.textContent = reason
    return text
  }

  const same = scores => scores.every(head => head.every(score => Math.abs(score - head[0]) < 1e-9))

  function described(data, scores, options) {
    const which = options ? `${options}: ` : ""
    if (typeof scores === "string") return `${which}no curve`
    if (same(scores)) return `${which}the same at every distance`
    const last = data.distances[data.distances.length - 1]
    const ends = scores.map((head, place) => `head ${place + 1} ${short(head[head.length - 1])}`)
    return `${which}${data.unit} at distance ${last}: ${ends.join(", ")}`
  }

  const short = number => String(Math.abs(number) < 1e-9 ? 0 : Number(number.toPrecision(3))).replace("-", "−")

  function draw(data, scores, width) {
    const all = scores.flat()
    let [low, high] = [Math.min(...all), Math.max(...all)]
    const room = high - low < 1e-9 ? 1 : ROOM * (high - low)
    ;[low, high] = [low - room, high + room]
    const last = data.distances[data.distances.length - 1]
    const x = at => EDGE.left + (at / last) * (width - EDGE.left - EDGE.right)
    const y = at => EDGE.top + ((high - at) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom)
    const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img" })
    svg.setAttribute("aria-label", `Mean ${data.quantity} of two equal tokens against their distance, a line per head`)
    for (const tick of ticks(low, high, 5)) {
      svg.append(element("path", { class: "grid", d: `M${EDGE.left} ${y(tick)}H${width - EDGE.right}` }))
      svg.append(text(short(tick), { x: EDGE.left - 6, y: y(tick) + 4, "text-anchor": "end" }))
    }
    for (const tick of ticks(0, last, width < 420 ? 4 : 8)) {
      svg.append(element("path", { class: "grid", d: `M${x(tick)} ${EDGE.top}V${HEIGHT - EDGE.bottom}` }))
      svg.append(text(short(tick), { x: x(tick), y: HEIGHT - EDGE.bottom + 16, "text-anchor": "middle" }))
    }
    svg.append(text("distance", { x: (EDGE.left + width - EDGE.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }))
    svg.append(text(data.unit, { transform: `translate(12 ${(EDGE.top + HEIGHT - EDGE.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }))
    scores.forEach((head, place) => {
      const points = head.map((score, at) => `${x(data.distances[at]).toFixed(1)} ${y(score).toFixed(1)}`)
      svg.append(element("path", { class: `line head-${place}`, d: `M${points.join("L")}` }))
      const left = Math.max(0, Math.min(EDGE.left, width - KEY * scores.length)) + KEY * place
      svg.append(element("path", { class: `line head-${place}`, d: `M${left} 12h20` }))
      svg.append(text(`head ${place + 1}`, { x: left + 25, y: 16 }))
    })
    return svg
  }

  function ticks(low, high, count) {
    const raw = (high - low) / count
    const power = 10 ** Math.floor(Math.log10(raw))
    const step = power * [1, 2, 5, 10].find(factor => factor * power >= raw)
    const places = []
    for (let at = Math.ceil(low / step); at <= high / step + 1e-9; at += 1) places.push(Number((at * step).toPrecision(12)))
    return places
  }

  function element(name, attributes) {
    const node = document.createElementNS(SVG, name)
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value)
    return node
  }

  function text(words, attributes) {
    const node = element("text", attributes)
    node.textContent = words
    return node
  }

  // -- what is wide: a line above it while something is hidden at its right -----------------------------------------

  function hinted(box) {
    const hint = document.createElement("p")
    hint.className = "gallery-hint"
    hint.textContent = "scroll sideways for more →"
    hint.hidden = true
    if (!box.matches(".gallery-formula")) box.before(hint)
    const update = () => {
      hint.hidden = box.scrollWidth <= box.clientWidth + 1
      box.toggleAttribute("data-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1)
    }
    box.addEventListener("scroll", update, { passive: true })
    new ResizeObserver(update).observe(box)
    update()
  }

  // -- a link to what is folded opens it ------------------------------------------------------------------------------

  function unfold() {
    const target = document.getElementById(location.hash.slice(1))
    const folded = target?.closest("details") ?? target?.querySelector("details") ?? target?.nextElementSibling
    if (folded?.matches("details")) folded.open = true
  }

  function start() {
    window.addEventListener("hashchange", unfold)
    unfold()
    document.querySelectorAll("table.gallery-table").forEach(sortable)
    document.querySelectorAll("form.gallery-filters").forEach(filtered)
    document.querySelectorAll(".gallery-columns select").forEach(columns)
    document.querySelectorAll("figure.gallery-curve").forEach(curve)
    document.querySelectorAll(".gallery-scroll").forEach(hinted)
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start)
  else start()
})()
