"""The steps that admit a newcomer: on free resources, on those of completing jobs, by shrinking or preempting jobs."""
