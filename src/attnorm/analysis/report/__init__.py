"""`attnorm report`: one self-contained HTML page for any set of run folders.

content:   collects everything that the page says into plain values, from the studies of the runs. task_page says what
           belongs to one task; tables, curves and examples are its parts.
charts:    charts as functions of plain rows; forest is one of them, and drawings chooses which are drawn.
page:      writes the HTML file, from templates/ and assets/.
"""
