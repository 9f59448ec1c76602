-- The program around a script.

module(..., package.seeall)

-- The words behind the script on the command line.
parameters = {}

function exit (status) os.exit(status or 0) end
