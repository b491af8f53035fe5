// Formulas are written as $...$ and $$...$$; pymdownx.arithmatex turns them into \(...\) and \[...\].
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
  options: { ignoreHtmlClass: ".*", processHtmlClass: "arithmatex" },
};
