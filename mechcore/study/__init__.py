"""The engine of every study: steps and jobs, their keys, the run store, executors, results."""
