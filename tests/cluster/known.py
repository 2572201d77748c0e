"""A crash that is not ours: what it looks like, so that a test can start its job again, once, and nothing else."""


def crashed_in_init(text):
    """Open MPI 5 under srun: a rank that still waits in MPI_Init is sent to by one that was let go too early.

    open-mpi/ompi#12495; seen now and then in steps of eight ranks on emulated nodes, over TCP.
    """
    return "mca_pml_ob1_recv_frag_callback_match" in text and "ompi_mpi_init" in text
