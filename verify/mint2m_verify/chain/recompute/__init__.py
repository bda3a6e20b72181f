"""The numbers of each stage again, from its raw artifacts; numpy only."""
