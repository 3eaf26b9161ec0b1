"""What every algorithm needs to turn a form into a program: sweeps, boxes, panels, moves, tiles and packed weights."""
