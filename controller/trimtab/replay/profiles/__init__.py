"""Cost profiles learnt from step times: samples from files, the fit, and how well it holds."""
