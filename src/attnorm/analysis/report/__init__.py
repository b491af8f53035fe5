"""`attnorm report`: one self-contained HTML page for any set of run folders.

content:   collects everything that the page says into plain values. setup, results, curves and examples are its parts.
charts:    charts as functions of plain rows (Altair). tables: tables as plain values.
page:      writes the HTML file, from templates/ and assets/.
"""
