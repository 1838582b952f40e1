"""The scaler: machines are switched on for jobs that wait, and off when they are idle."""
