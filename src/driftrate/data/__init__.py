"""What comes from files: tables, their columns, h5ad files, and the cells of Figure 6.

`CellStream` belongs here: it resamples cells that were read. A stream whose target follows a path
belongs to `driftrate.streams`.
"""
