"""The look of the report: system fonts, light and dark by the reader's setting, wide things scroll."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --text: #1c1f23; --soft: #5a626b; --line: #d9dde2; --raised: #f5f6f8; --link: #0b5cad;
  --holds: #00664a; --fails: #a03c00; --open: #5a626b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --text: #e4e7ea; --soft: #a3abb4; --line: #363c43; --raised: #1e2226; --link: #7db7f0;
    --holds: #58c9a3; --fails: #f0965a; --open: #a3abb4;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  overflow-wrap: break-word;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 2.5rem 0 0.5rem; border-top: 1px solid var(--line);
padding-top: 1rem; } h3 { font-size: 1.05rem; margin: 1.5rem 0 0.5rem; }
p, .notes, .plain { max-width: 46rem; }
a { color: var(--link); }
code, .ids { font: 0.85em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { margin: 0.5rem 0; padding: 0.75rem; background: var(--raised); border-radius: 6px; }
nav ul { columns: 15rem; column-gap: 2rem; padding-left: 1.2rem; }
nav li { break-inside: avoid; }
.scroll { overflow-x: auto; max-width: 100%; margin: 0.75rem 0; }
.scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: 0.85rem; line-height: 1.35; }
.title { font-size: 0.9rem; font-weight: 600; margin: 1rem 0 -0.4rem; }
th, td { padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
} th { background: var(--raised); font-weight: 600; }
td.num, th.num { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.verdicts td:nth-child(2) { min-width: 14rem; }
.verdicts td:nth-child(3) { max-width: 15rem; }
.verdicts td:nth-child(4), .verdicts td:nth-child(6), .short { white-space: nowrap; }
.wide { min-width: 46rem; }
tr.first td { border-top: 2px solid var(--line); }
.word { font-weight: 600; white-space: nowrap; }
.holds { color: var(--holds); }
.fails { color: var(--fails); }
.open { color: var(--open); font-weight: 400; }
.reason, .soft, .notes, figcaption { color: var(--soft); }
.notes, .reason, figcaption { font-size: 0.85rem; }
.notes { padding-left: 1.2rem; }
figure { margin: 1rem 0; }
figcaption { max-width: 62rem; margin-top: 0.4rem; }
/* Pictures are drawn on white and stay so in the dark. */
.picture { background: #ffffff; border: 1px solid var(--line); border-radius: 6px; padding: 0.5rem; }
.picture img { display: block; height: auto; width: auto; max-width: 100%; margin: 0 auto; }
.warning { border-left: 4px solid var(--fails); padding: 0.3rem 0.75rem; background: var(--raised); }
details { margin: 0.4rem 0; }
summary { cursor: pointer; }
@media (max-width: 45rem) {
  body { padding: 0.75rem; }
  nav ul { columns: auto; }
  /* At a phone's width labels would be unreadable: a picture keeps its size and scrolls in its card. */
  .picture img { max-width: 44rem; }
  .cards, .cards tbody, .cards tr, .cards td { display: block; width: auto; min-width: 0; }
  .cards thead, .cards td.none { display: none; }
  .cards tr, .cards tr.first { border-top: 1px solid var(--line); padding: 0.5rem 0; }
  .cards td, .cards tr.first td, .verdicts td:nth-child(2) { border: 0; padding: 0.1rem 0; min-width: 0; }
  .verdicts td:nth-child(n) { max-width: none; white-space: normal; }
  .verdicts td:nth-child(-n+2)::before { display: none; }
  .cards td::before { content: attr(data-label) ": "; color: var(--soft); }
}
"""
