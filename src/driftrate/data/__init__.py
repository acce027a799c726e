"""What comes from outside: tables, columns, h5ad files, and the cells of Figure 6."""
