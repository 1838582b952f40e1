"""The agent of a GPU node (`gpu-burnin watch`): it sees faults while users work, revokes, and answers the admitter."""
