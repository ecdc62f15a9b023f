"""Health of nodes and clusters: facts with their age, and the findings that every surface shows."""
