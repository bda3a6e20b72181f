"""What a long run keeps outside its run directory, so that another execution goes on where it stopped.

`tensor_file` is how tensors lie in a file; `identity` says whose work a folder holds; `folder` is the driver's side of
the folder, `rank_folder` a rank's; `pass_files` holds one rank's pass over one prefix; `passes` is what the ranks agree
on before any of it is used. The rule throughout: nothing is trusted unread, and what does not fit is refused.
"""
