-- The program around a script.

module(..., package.seeall)

-- The words behind the script on the command line.
parameters = {}

function exit (status)
   engine.stop()
   os.exit(status or 0)
end
