"""The stages of a shuffle as Spark runs them, in its Python workers."""
