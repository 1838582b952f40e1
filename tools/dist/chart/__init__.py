"""The Helm chart of attach mode, made of the very objects that `muster attach` writes: nothing of it is written twice."""
