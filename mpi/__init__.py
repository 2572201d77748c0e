"""All-reduce algorithms over MPI: who shares a node, what each rank does, and the code that does it. No torch."""
