"""`attnorm report`: one self-contained HTML page for any set of run folders.

content:   collects everything that the page says into plain values. runs, results, curves and examples are its parts.
charts:    charts as functions of plain rows (Altair); forest is one of them, and drawings chooses which are drawn.
tables:    tables as plain values.
page:      writes the HTML file, from templates/ and assets/.
"""
