"""How the page of a race looks, and what happens under the pointer."""

# Okabe and Ito's palette; one role, one colour, on every stream.
OURS, OURS_TOO, WINNER = "#0072B2", "#009E73", "#D55E00"
REFERENCE, SECOND_ORDER = "#E69F00", "#CC79A7"
STYLE = """
section.stream h2 { overflow-wrap: anywhere; }
ul.says { margin: .6rem 0 1.2rem; padding-left: 1.2rem; } ul.says li { margin: .15rem 0; }
ul.says li:first-child { font-weight: 600; }
.note { color: var(--soft); font-size: .86rem; max-width: 60rem; margin: .4rem 0; }
.scroll { overflow-x: auto; }
th { text-align: left; font-weight: 600; padding: .3rem .5rem; border-bottom: 2px solid var(--line);
  vertical-align: bottom; font-size: .8rem; color: var(--soft); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { vertical-align: middle; } td.who { white-space: nowrap; font-weight: 500; }
tr.ours td.who { color: #0072B2; font-weight: 700; }
.tag { font-size: .72rem; color: var(--soft); font-weight: 400; margin-left: .35rem; }
td.strip { min-width: 13rem; width: 34%; padding: 0 .5rem; }
.strip svg { display: block; width: 100%; height: 1.5rem; }
table.heat { width: auto; font-size: .76rem; margin-top: .6rem; }
table.heat td, table.heat th { padding: .12rem .3rem; text-align: center; border: 1px solid #fff; }
table.heat th { vertical-align: bottom; border-bottom: 0; }
table.heat th span { writing-mode: vertical-rl; transform: rotate(180deg); white-space: nowrap;
  max-height: 15rem; overflow: hidden; text-overflow: ellipsis; }
table.heat td.who { text-align: left; position: sticky; left: 0; background: #fff; }
.chips { display: flex; flex-wrap: wrap; gap: .3rem; margin: .5rem 0; }
.chips button { font: inherit; font-size: .76rem; line-height: 1.2; padding: .12rem .5rem;
  border: 1px solid var(--line); border-radius: 1rem; background: #fff; color: var(--soft);
  cursor: pointer; }
.chips button.k { border-color: var(--c); color: var(--ink);
  box-shadow: inset .55rem 0 0 -.1rem var(--c); padding-left: .85rem; }
.chips button.hot { background: #22272e; color: #fff; }
.panels { display: grid; gap: .5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.panel { width: 100%; height: auto; font: 22px system-ui, sans-serif; fill: var(--ink); }
.panel .t { font-weight: 600; font-size: 24px; } .panel .n { fill: var(--soft); font-size: 20px; }
.panel .e { text-anchor: end; } .panel .m { text-anchor: middle; }
.panel .g { stroke: var(--line); stroke-width: 1.5; }
.c path { fill: none; stroke: #b9c0c9; stroke-width: 1.6; stroke-linejoin: round; }
.c.k path { stroke: var(--c); stroke-width: 4; } .c.d path { stroke-dasharray: 14 9; }
.c path.b { fill: var(--c); stroke: none; opacity: .2; }
.c.hot path { stroke: #22272e; stroke-width: 5; } .c.hot path.b { stroke: none; }
.now { border: 1px solid var(--line); border-left: .35rem solid #0072B2; border-radius: .3rem;
  padding: .6rem .9rem; margin: .8rem 0; background: #f7f9fb; }
.now h3 { margin: 0; font-size: .8rem; color: var(--soft); font-weight: 600; }
.now p { margin: .35rem 0; } .now p.take { font-size: 1.12rem; font-weight: 600; }
.loop { border-top: 1px solid var(--line); padding: .25rem 0; margin: 0; position: relative; }
.loop summary { color: var(--ink); } p.loop.none { color: var(--soft); font-size: .86rem; }
.loop pre { overflow-x: auto; margin: .4rem 0; padding: .6rem .7rem; background: #fff;
  border: 1px solid var(--line); border-radius: .3rem; font-size: .8rem; line-height: 1.45; }
.loop .copy { position: absolute; right: .4rem; margin-top: .85rem; font: inherit; z-index: 1;
  font-size: .74rem; padding: .1rem .5rem; border: 1px solid var(--line); border-radius: .3rem;
  background: #fff; cursor: pointer; }
td.why { white-space: normal; color: #8f2d00; font-size: .78rem; }
abbr { text-decoration: none; color: #0072B2; }
.races ul { margin: .3rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
details { margin: .4rem 0; } summary { cursor: pointer; color: #0a5c99; font-size: .9rem;
  overflow-wrap: anywhere; }
@media (max-width: 42rem) {
  td.strip, th.strip, .wide { display: none; }
  td, th { padding-left: .3rem; padding-right: .3rem; }
  td.who { white-space: normal; min-width: 6.5rem; } td.who .tag { display: block; margin: 0; }
  table { font-size: .8rem; } th { font-size: .72rem; }
  .chips button:not(.k) { display: none; }
}
@media print { .chips, .copy { display: none; } }
"""
# A chip, a row or a curve under the pointer shows its method in all panels of the stream.
SCRIPT = """<script>
document.querySelectorAll("section.stream").forEach(section => {
  const show = event => {
    const at = event.target.closest("[data-m]");
    section.querySelectorAll(".hot").forEach(one => one.classList.remove("hot"));
    if (!at) return;
    section.querySelectorAll(`[data-m="${at.dataset.m}"]`).forEach(one => {
      one.classList.add("hot");
      if (one.matches("g")) one.parentNode.appendChild(one);
    });
  };
  section.addEventListener("pointerover", show);
  section.addEventListener("focusin", show);
});
// Browsers keep their clipboard from pages of a file, but not a selection.
document.querySelectorAll("button.copy").forEach(button => button.onclick = () => {
  getSelection().selectAllChildren(button.nextElementSibling);
  button.textContent = document.execCommand("copy") ? "copied" : "selected";
});
</script>"""
